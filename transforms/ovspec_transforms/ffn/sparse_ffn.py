"""Replacement of gated MLPs by the native operation GatedMLP."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.ffn.ffn_layers import GATED_MLP, found, is_gated_mlp, match_ffn, other_activation
from ovspec_transforms.ffn.ffn_weights import columns_of, rows_of, values_of
from ovspec_transforms.graph import nodes_of_type, run_pass
from ovspec_transforms.operation_pass import OperationPass, check_served
from ovspec_transforms.report import PassReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.weight_memory import WeightMemory


class SparseFfn(OperationPass):
    """Replace gate, up and down projections and the activation between them by a GatedMLP operation."""

    def __init__(self, gates_apart: bool) -> None:
        super().__init__("MatMul")
        self._gates_apart, self._memory = gates_apart, WeightMemory()

    def matches(self, node: ov.Node) -> bool:
        """Whether a gated MLP ends with `node`."""
        return is_gated_mlp(node)

    def operation(self, node: ov.Node) -> ov.Node:
        """Its GatedMLP."""
        pattern = match_ffn(node)
        up = rows_of(pattern.up, "up", self._memory)
        apart = self._gates_apart and pattern.gate.half is None
        gate = values_of(pattern.gate.matmul) if apart else rows_of(pattern.gate, "gate", self._memory)
        columns = columns_of(pattern.down, self._memory)
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
    """The feed-forward parts of a model without gated ones, as `PassReport.left` names them."""
    ends = ((node, other_activation(node)) for node in nodes_of_type(model, "MatMul"))
    return [
        f"{node.get_friendly_name()}: {found(other)} stands where SiLU or GELU of a gate, times up, was "
        "expected"
        for node, other in ends
        if other is not None
    ]


def sparse_ffn(model: ov.Model, allow_partial: bool = False, gates_apart: bool = False) -> PassReport:
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
    node_pass = SparseFfn(gates_apart)
    report = run_pass(model, node_pass)
    served = len(nodes_of_type(model, GATED_MLP))
    left = [f"{name}: {reason}" for name, reason in node_pass.unknown.items()]
    if not served and not left:
        left = _of_another_form(model)
    if not allow_partial:
        none = "the model has no gated MLP of dense layers: it needs no sparse_ffn"
        check_served("feed-forward layers", served, left, none)
    return PassReport(report.name, report.changed, tuple(left))
