"""Replacement of gated MLPs by the native operation GatedMLP."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.ffn.ffn_layers import GATED_MLP, found, is_gated_mlp, match_ffn, other_activation
from ovspec_transforms.ffn.ffn_weights import columns_of, rows_of, values_of
from ovspec_transforms.graph import nodes_of_type
from ovspec_transforms.replace_subgraphs import check_served, replace_subgraphs
from ovspec_transforms.report import TransformReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.weight_memory import WeightMemory


def _operation(node: ov.Node, gates_apart: bool, memory: WeightMemory) -> ov.Node:
    """The GatedMLP of the projections, and of the activation between them, that end with `node`."""
    pattern = match_ffn(node)
    up = rows_of(pattern.up, "up", memory)
    apart = gates_apart and pattern.gate.half is None
    gate = values_of(pattern.gate.matmul) if apart else rows_of(pattern.gate, "gate", memory)
    columns = columns_of(pattern.down, memory)
    weights = [tensor for part in (gate, up, columns) for tensor in part.tensors]
    no_limits = [ops.constant(np.zeros((0,), np.float32)).output(0) for _ in range(2)]
    attributes = {
        "activation": pattern.activation,
        "gate_format": gate.fmt,
        "up_format": up.fmt,
        "down_format": columns.fmt,
    }
    try:
        return ovspec_ops.create(GATED_MLP, [pattern.rows, *weights, *no_limits], attributes)
    except ValueError as error:
        raise UnknownPatternError(str(error)) from error


def _of_another_form(model: ov.Model) -> list[str]:
    """The feed-forward parts of a model without gated ones, as `TransformReport.left` names them."""
    ends = ((node, other_activation(node)) for node in nodes_of_type(model, "MatMul"))
    return [
        f"{node.get_friendly_name()}: {found(other)} stands where SiLU or GELU of a gate, times up, was "
        "expected"
        for node, other in ends
        if other is not None
    ]


def sparse_ffn(model: ov.Model, allow_partial: bool = False, gates_apart: bool = False) -> TransformReport:
    """Replace the gated MLP of every layer by GatedMLP, whose weights are held channel by channel.

    Knows gate, up and down projections with SiLU or GELU between them as optimum-intel 2.1 exports them,
    stateful or paged, with weights of 4, 8, 16 or 32 bits. All channels count until `limit_channels` lets
    a pass choose. The result needs this library wherever it runs, and otherwise runs as before, in a stock
    pipeline too.

    Args:
        model: changed in place.
        gates_apart: leave the gates' products to another operation, whose results GatedMLP takes; a gate that
            shares its product with up is taken along.
        allow_partial: report layers of an unknown form as `left` instead of raising.

    Raises:
        ValueError: feed-forward layers have an unknown form, or the model has none.
    """
    operation = partial(_operation, gates_apart=gates_apart, memory=WeightMemory())
    report = replace_subgraphs(model, "SparseFfn", "MatMul", is_gated_mlp, operation)
    served = len(nodes_of_type(model, GATED_MLP))
    if not served and not report.left:
        report = replace(report, left=tuple(_of_another_form(model)))
    if not allow_partial:
        none = "the model has no gated MLP of dense layers: it needs no sparse_ffn"
        check_served("feed-forward layers", served, report.left, none)
    return report
