"""The mixture of experts of Qwen3-MoE: all experts as one batched product, as optimum-intel exports it.

The CPU plugin replaces the three batched products by GatherMatmul, which computes the chosen experts only.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.layers import i64, i64_scalar, linear, swiglu
from ovspec_models.synthetic.weights import Weights


def moe_ffn(data: ov.Node, shape: ModelShape, weights: Weights, prefix: str) -> ov.Node:
    """Mixture of SwiGLU experts over ``[batch, rows, hidden]``, routed per token, same shape out."""
    experts, hidden = shape.num_experts, shape.hidden_size
    tokens = ops.reshape(data, i64(-1, hidden), special_zero=False)
    copies = ops.tile(tokens, i64(experts, 1))
    batched = ops.reshape(copies, i64(experts, -1, hidden), special_zero=False)

    def product(rows: ov.Node, part: str) -> ov.Node:
        node_name = f"__module.{prefix}.experts/aten::bmm/{part}"
        return ops.matmul(rows, weights.matrix(f"{prefix}.experts.{part}"), False, True, name=node_name)

    inner = swiglu(product(batched, "gate_proj"), product(batched, "up_proj"))
    outputs = ops.reshape(product(inner, "down_proj"), i64(experts, 0, hidden), special_zero=True)
    routing = router(tokens, shape, weights, prefix)
    mixed = ops.reduce_sum(ops.multiply(outputs, routing), i64(0), keep_dims=False)
    return ops.reshape(mixed, ops.shape_of(data, "i64"), special_zero=False)


def router(tokens: ov.Node, shape: ModelShape, weights: Weights, prefix: str) -> ov.Node:
    """Share of each expert for each token, f32 ``[experts, tokens, 1]``; zero but for the top-k, sum one."""
    experts, top = shape.num_experts, shape.num_experts_per_tok
    probabilities = ops.softmax(linear(tokens, weights, f"{prefix}.gate.weight"), -1)
    best = ops.topk(probabilities, i64_scalar(top), -1, "max", "value", index_element_type="i64")
    shares = ops.divide(best.output(0), ops.reduce_sum(best.output(0), i64(-1), keep_dims=True))
    indices = ops.convert(best.output(1), "i32")
    rows = ops.gather(ops.shape_of(indices, "i64"), i64(0), i64_scalar(0))
    zeros = ops.broadcast(np.array(0.0, np.float32), ops.concat([rows, i64(experts)], 0))
    start, step = np.array([0, 0], np.int32), np.array([1, 1], np.int32)
    shares = ops.slice(shares, start, ops.shape_of(indices, "i32"), step, i64(0, 1))
    spread = ops.scatter_elements_update(zeros, indices, shares, i64_scalar(1))
    by_expert = ops.transpose(spread, np.array([1, 0], np.int32))
    return ops.unsqueeze(ops.reshape(by_expert, i64(experts, 0), special_zero=True), i64_scalar(2))
