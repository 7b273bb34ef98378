"""Replacement of routed experts by the native operation SparseMoE."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.experts.gated_experts import Projection
from ovspec_transforms.experts.moe_layers import (
    EXPERTS_OF,
    INDICES,
    SPARSE_MOE,
    is_sum_of_experts,
    match_experts,
    router_of,
)
from ovspec_transforms.graph import nodes_of_type, source_node
from ovspec_transforms.replace_subgraphs import check_served, replace_subgraphs
from ovspec_transforms.report import TransformReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError, expert_weights


def _operation(node: ov.Node) -> ov.Node:
    """The SparseMoE of the experts that `node` sums; indices and weights of their router are its inputs."""
    found = match_experts(node)
    gated = found.gated
    parts = {"gate": gated.gate, "up": gated.up, "down": gated.down}
    weights: list[ov.Node] = []
    for name, part in parts.items():
        weights += expert_weights(part.matmul, name, part.columns)
    if any(part.bias is not None for part in parts.values()):
        weights += [_bias(part) for part in parts.values()]
    indices = ops.convert(found.indices, ov.Type.i32)
    inputs = [found.tokens, indices.output(0), found.shares, *(weight.output(0) for weight in weights)]
    try:
        experts = ovspec_ops.create(SPARSE_MOE, inputs, {"limit": gated.limit, "alpha": gated.alpha})
    except ValueError as error:
        raise UnknownPatternError(str(error)) from error
    experts.set_friendly_name(node.get_friendly_name() + EXPERTS_OF)
    return _in_shape_of(node, experts)


def _bias(part: Projection) -> ov.Node:
    """The biases of a projection's neurons, no element without."""
    return ops.constant(np.zeros(0, np.float32) if part.bias is None else part.bias[:, part.columns])


def _in_shape_of(total: ov.Node, experts: ov.Node) -> ov.Node:
    """The operation's `[rows, hidden]` in the shape of the sum that it replaces.

    A sum `[batch, tokens, hidden]` may be added to a shared expert's output of that shape, with which
    `[rows, hidden]` would be broadcast to `[rows, rows, hidden]` where every row is a batch of its own.
    """
    rank = len(total.get_output_partial_shape(0))
    if rank == len(experts.get_output_partial_shape(0)):
        return experts
    reshape = source_node(source_node(total))
    if reshape.get_type_name() != "Reshape":
        raise UnknownPatternError(f"{total.get_friendly_name()!r} sums experts in {rank} dimensions")
    # Its target shape is [experts, shape of the sum].
    target = reshape.input(1).get_source_output()
    whole = ops.slice(target, [1], [rank + 1], [1])
    return ops.reshape(experts.output(0), whole, special_zero=False)


def sparse_moe(model: ov.Model, allow_partial: bool = False) -> TransformReport:
    """Replace the routed experts of every layer by SparseMoE, which reads the chosen experts only.

    Knows Qwen3-MoE, Mixtral, Qwen2-MoE and GPT-OSS as optimum-intel 2.1 exports them, stateful or paged, with
    weights of 4, 8, 16 or 32 bits; shared experts stay as they are. The result needs this library
    wherever it runs, also in a stock pipeline.

    Args:
        model: changed in place.
        allow_partial: report layers of an unknown form as `left` instead of raising.

    Raises:
        ValueError: a layer with experts has an unknown form, or the model has no experts.
    """
    report = replace_subgraphs(model, "SparseMoE", "ReduceSum", is_sum_of_experts, _operation)
    served = {
        router.get_friendly_name()
        for node in nodes_of_type(model, SPARSE_MOE)
        if (router := router_of(node.input(INDICES).get_source_output())) is not None
    }
    others = [
        f"{router.get_friendly_name()}: a router whose experts have a form that is not known"
        for router in nodes_of_type(model, "TopK")  # which only layers with experts have
        if router.get_friendly_name() not in served and not report.left
    ]
    report = replace(report, left=(*others, *report.left))
    if not allow_partial:
        none = "the model has no routed experts: it needs no sparse_moe"
        check_served("layers with experts", len(served), report.left, none)
    return report
