"""Grouped query attention over a KV state, as optimum-intel exports it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.layers import KVState, apply_rope, i64, i64_scalar, linear, rms_norm
from ovspec_models.synthetic.weights import Weights

_INT64_MAX = np.iinfo(np.int64).max
_HEADS_FIRST = np.array([0, 2, 1, 3], np.int32)
# optimum-intel masks with the smallest f16, so that the mask stays finite in half precision.
_MASKED = np.array(-65504.0, np.float32)


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Shared by all layers: rotary tables, mask ``[batch, 1, rows, total]``, ``total`` as i64 ``[1]``."""

    rope: tuple[ov.Node, ov.Node]
    mask: ov.Node
    total: ov.Node


def causal_mask(attention_mask: ov.Node, past: ov.Node, rows: ov.Node, total: ov.Node) -> ov.Node:
    """Additive mask f32 ``[batch, 1, rows, total]``: row ``i`` sees the first ``past + i + 1``, less padding.

    `attention_mask` is i64 ``[batch, total]``; `past`, `rows` and `total` are i64 scalars.
    """
    zero, one = i64_scalar(0), i64_scalar(1)
    keys = ops.unsqueeze(ops.range(zero, total, one, "i64"), i64(0, 1, 2))
    queries = ops.add(ops.range(zero, rows, one, "i64"), past)
    causal = ops.less_equal(keys, ops.unsqueeze(queries, i64(0, 1, 3)))
    unpadded = ops.unsqueeze(ops.convert(attention_mask, "boolean"), i64(1, 2))
    return ops.select(ops.logical_and(causal, unpadded), np.array(0.0, np.float32), _MASKED)


def attention(
    data: ov.Node,
    shape: ModelShape,
    weights: Weights,
    prefix: str,
    shared: AttentionInputs,
    states: tuple[KVState, KVState],
    rotated: int | None = None,
    gated: bool = False,
) -> tuple[ov.Node, list[ov.Node]]:
    """Self-attention of ``[batch, rows, hidden]``; returns the output projection and the states' Assigns.

    Args:
        shared: what all layers share; its rotary tables are of the channels that are rotated.
        states: of keys and values.
        rotated: the first so many channels of a head have rotary positions; `None`: all.
        gated: whether each head's output is multiplied by a gate, as in Qwen3-Next; ``q_proj`` makes it
            behind the head's query.
    """
    heads, kv_heads, size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim

    def project(part: str, count: int, width: int = size) -> ov.Node:
        flat = linear(data, weights, f"{prefix}.{part}_proj.weight")
        return ops.reshape(flat, i64(0, 0, count, width), special_zero=True)

    query, key, value = (
        project("q", heads, size * (1 + gated)),
        project("k", kv_heads),
        project("v", kv_heads),
    )
    if gated:
        query, gate = _split(query, size)
    if shape.qk_norm:
        query = rms_norm(query, weights, f"{prefix}.q_norm.weight", shape.rms_norm_eps)
        key = rms_norm(key, weights, f"{prefix}.k_norm.weight", shape.rms_norm_eps)
    query, key = (
        _with_positions(ops.transpose(part, _HEADS_FIRST), shared.rope, size, rotated or size)
        for part in (query, key)
    )
    keys, store_keys = states[0].append(key)
    values, store_values = states[1].append(ops.transpose(value, _HEADS_FIRST))
    if heads != kv_heads:
        batch_and_heads = ops.gather(ops.shape_of(keys, "i64"), i64(0, 1), i64_scalar(0))
        target = ops.concat([batch_and_heads, i64(heads // kv_heads), shared.total, i64(size)], 0)
        keys, values = (_repeat(part, target, heads, size) for part in (keys, values))
    scale = np.array(size**-0.5, np.float32)
    name = f"__module.{prefix}/aten::scaled_dot_product_attention/ScaledDotProductAttention"
    output = ops.scaled_dot_product_attention(query, keys, values, shared.mask, scale, False, name=name)
    by_rows = ops.transpose(output, _HEADS_FIRST)
    if gated:
        by_rows = ops.multiply(by_rows, ops.sigmoid(gate))
    flat = ops.reshape(by_rows, i64(0, 0, heads * size), special_zero=True)
    return linear(flat, weights, f"{prefix}.o_proj.weight"), [store_keys, store_values]


def _with_positions(data: ov.Node, tables: tuple[ov.Node, ov.Node], size: int, rotated: int) -> ov.Node:
    """Rotate the first channels of heads ``[batch, heads, rows, size]``."""
    if rotated == size:
        return apply_rope(data, tables, size)
    first, rest = _split(data, rotated)
    return ops.concat([apply_rope(first, tables, rotated), rest], -1)


def _split(data: ov.Node, first: int) -> tuple[ov.Node, ov.Node]:
    """The first channels of ``[..., size]``, and the rest."""
    low = ops.slice(data, i64(0), i64(first), i64(1), i64(-1))
    return low, ops.slice(data, i64(first), i64(_INT64_MAX), i64(1), i64(-1))


def _repeat(data: ov.Node, target: ov.Node, heads: int, size: int) -> ov.Node:
    """Give every query head its KV head: ``[batch, kv_heads, total, size]`` to ``[batch, heads, ...]``."""
    grouped = ops.broadcast(ops.unsqueeze(data, i64_scalar(2)), target, broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(grouped, i64(0, heads, -1, size), special_zero=True)
