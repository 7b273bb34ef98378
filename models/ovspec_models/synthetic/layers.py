"""The parts of a decoder layer, node by node as optimum-intel exports them.

The CPU plugin recognises RMSNorm, rotary positions, the KV state and the experts by the shape of their
subgraphs, so the nodes here follow the export exactly, even where a shorter form exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory

from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.weights import Weights

_FACTORY = NodeFactory("opset4")
_INT64_MAX = np.iinfo(np.int64).max


def i64(*values: int) -> ov.Node:
    """A vector constant of i64 ``[len(values)]``."""
    return ops.constant(np.array(values, np.int64))


def i64_scalar(value: int) -> ov.Node:
    """A scalar constant of i64 ``[]``."""
    return ops.constant(np.array(value, np.int64))


def size_of(node: ov.Node, axis: int) -> ov.Node:
    """The size of one axis, i64 scalar."""
    return ops.gather(ops.shape_of(node, "i64"), i64_scalar(axis), i64_scalar(0))


def linear(data: ov.Node, weights: Weights, name: str) -> ov.Node:
    """``data @ weight.T + bias`` for the weight called `name`, e.g. ``model.layers.0.mlp.up_proj.weight``."""
    node_name = f"__module.{name.removesuffix('.weight')}/aten::linear/MatMul"
    product, bias = ops.matmul(data, weights.matrix(name), False, True, name=node_name), weights.bias(name)
    return product if bias is None else ops.add(product, bias)


def rms_norm(data: ov.Node, weights: Weights, name: str, eps: float) -> ov.Node:
    """RMSNorm over the last axis: ``weight * data / sqrt(mean(data^2) + eps)``."""
    rank = len(data.output(0).get_partial_shape())
    scope = f"__module.{name.removesuffix('.weight')}"

    def like(value: float) -> ov.Node:
        return ops.constant(np.full((1,) * rank, value, np.float32))

    square = ops.power(data, like(2.0), name=f"{scope}/aten::pow/Power")
    mean = ops.reduce_mean(square, i64(-1), keep_dims=True)
    root = ops.sqrt(ops.add(mean, like(eps)))
    normed = ops.multiply(data, ops.divide(like(1.0), root))
    return ops.multiply(weights.vector(name, rank), normed, name=f"{scope}/aten::mul/Multiply_1")


def inverse_frequencies(shape: ModelShape) -> ov.Node:
    """Rotary frequencies, f32 ``[1, head_dim / 2, 1]``; rescaled as Llama 3 does where the shape asks."""
    exponent = np.arange(0, shape.head_dim, 2, dtype=np.float32) / np.float32(shape.head_dim)
    frequency = (1.0 / np.float32(shape.rope_theta) ** exponent).astype(np.float32)
    scaling = shape.rope_scaling
    if scaling is not None:
        original = scaling.original_max_position_embeddings
        turns = original * frequency / (2 * np.pi)
        # 0 where a frequency turns less than low_freq_factor times in the original context, 1 above high.
        span = scaling.high_freq_factor - scaling.low_freq_factor
        smooth = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
        frequency = ((1 - smooth) * frequency / scaling.factor + smooth * frequency).astype(np.float32)
    return ops.constant(frequency.reshape(1, -1, 1))


def rope_tables(shape: ModelShape, position_ids: ov.Node) -> tuple[ov.Node, ov.Node]:
    """Cosine and sine of every position, f32 ``[batch, 1, rows, head_dim]``, from i64 ``[batch, rows]``."""
    positions = ops.convert(ops.unsqueeze(position_ids, i64_scalar(1)), "f32")
    angles = ops.matmul(inverse_frequencies(shape), positions, False, False)
    angles = ops.transpose(angles, np.array([0, 2, 1], np.int32))
    doubled = ops.concat([angles, angles], -1)
    return ops.unsqueeze(ops.cos(doubled), i64_scalar(1)), ops.unsqueeze(ops.sin(doubled), i64_scalar(1))


def apply_rope(data: ov.Node, tables: tuple[ov.Node, ov.Node], head_dim: int) -> ov.Node:
    """Rotate f32 ``[batch, heads, rows, head_dim]``: ``data * cos + rotate_half(data) * sin``."""
    half = head_dim // 2
    high = ops.slice(data, i64(half), i64(_INT64_MAX), i64(1), i64(3))
    low = ops.slice(data, i64(0), i64(half), i64(1), i64(3))
    rotated = ops.concat([ops.multiply(high, np.array(-1.0, np.float32)), low], -1)
    return ops.add(ops.multiply(data, tables[0]), ops.multiply(rotated, tables[1]))


def swiglu(gate: ov.Node, up: ov.Node) -> ov.Node:
    """``silu(gate) * up``."""
    # `ops.swish` always adds an input for beta, with which the plugin's MoE fusion does not match.
    return ops.multiply(_FACTORY.create("Swish", [gate.output(0)]), up)


def dense_ffn(data: ov.Node, weights: Weights, prefix: str) -> ov.Node:
    """SwiGLU FFN: ``down(silu(gate(data)) * up(data))``."""
    gate = linear(data, weights, f"{prefix}.gate_proj.weight")
    up = linear(data, weights, f"{prefix}.up_proj.weight")
    return linear(swiglu(gate, up), weights, f"{prefix}.down_proj.weight")


@dataclass(frozen=True, slots=True)
class KVState:
    """One layer's key or value state: what it held before this pass, and how to store what it holds after."""

    past: ov.Node
    """f32 ``[batch, kv_heads, past, head_dim]``, rows in the order of ``beam_idx``."""
    variable_id: str

    @classmethod
    def create(cls, shape: ModelShape, variable_id: str, batch: ov.Node, beam_idx: ov.Node) -> KVState:
        """Read the state `variable_id`, empty at first; `batch` is i64 ``[1]``."""
        heads, size = shape.num_key_value_heads, shape.head_dim
        empty = ops.broadcast(
            np.array(0.0, np.float32), ops.concat([batch, i64(heads), i64(0), i64(size)], 0)
        )
        state = ops.read_value(empty, variable_id, ov.Type.f32, ov.PartialShape([-1, heads, -1, size]))
        return cls(ops.gather(state, beam_idx, i64_scalar(0)), variable_id)

    def append(self, new: ov.Node) -> tuple[ov.Node, ov.Node]:
        """Past and new rows ``[batch, kv_heads, past + rows, head_dim]``, and the Assign that stores them."""
        full = ops.concat([self.past, new], -2)
        return full, ops.assign(full, self.variable_id)
