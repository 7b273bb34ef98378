"""Gated MLPs as one native operation."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.expert_weights import UnknownPatternError
from ovspec_transforms.ffn_layers import GATED_MLP, is_gated_mlp, match_ffn
from ovspec_transforms.ffn_weights import columns_of, rows_of
from ovspec_transforms.graph import NodePass, nodes_of_type, run_pass
from ovspec_transforms.report import PassReport


class SparseFfn(NodePass):
    """Replace gate, up and down projections and the activation between them by a GatedMLP operation."""

    def __init__(self) -> None:
        super().__init__("MatMul")
        self.unknown: dict[str, str] = {}

    def rewrite(self, node: ov.Node) -> bool:
        """Replace the gated MLP that ends with `node`, or note why it was left."""
        if not is_gated_mlp(node):
            return False
        try:
            operation = _operation(node)
        except UnknownPatternError as error:
            self.unknown[node.get_friendly_name()] = str(error)
            return False
        operation.set_friendly_name(node.get_friendly_name())
        for port in list(node.output(0).get_target_inputs()):
            port.replace_source_output(operation.output(0))
        return True


def _operation(down: ov.Node) -> ov.Node:
    pattern = match_ffn(down)
    gate, up = rows_of(pattern.gate, "gate"), rows_of(pattern.up, "up")
    columns = columns_of(pattern.down)
    weights = [constant for part in (gate, up, columns) for constant in part.constants]
    none = [np.zeros((0,), dtype) for dtype in (np.float32, np.float32, np.int32)]
    inputs = [pattern.rows, *(node.output(0) for node in (*weights, *map(ops.constant, none)))]
    attributes = {
        "activation": pattern.activation,
        "gate_format": gate.fmt,
        "up_format": up.fmt,
        "down_format": columns.fmt,
    }
    try:
        return ovspec_ops.create(GATED_MLP, inputs, attributes)
    except ValueError as error:
        raise UnknownPatternError(str(error)) from error


def sparse_ffn(model: ov.Model, allow_partial: bool = False) -> PassReport:
    """Replace the gated MLP of every layer by GatedMLP, whose weights are held channel by channel.

    Knows gate, up and down projections with SiLU or GELU between them as optimum-intel 2.1 exports them,
    stateful or paged, with weights of 4, 8, 16 or 32 bits. All channels count until `limit_channels` lets
    a pass choose. The result needs this library wherever it runs, and otherwise runs as before, in a stock
    pipeline too.

    Args:
        model: changed in place.
        allow_partial: leave what is not known as it is, and report it as `left`, instead of raising.

    Raises:
        ValueError: a gated MLP has a form that is not known, or the model has none.
    """
    node_pass = SparseFfn()
    report = run_pass(model, node_pass)
    served = len(nodes_of_type(model, GATED_MLP))
    left = [f"{name}: {reason}" for name, reason in node_pass.unknown.items()]
    if not allow_partial and left:
        raise ValueError(
            f"layer {left[0]}; {len(left)} of {len(left) + served} gated MLPs can't be served, "
            "pass allow_partial=True (--allow-partial) to leave them as they are"
        )
    if not allow_partial and not served:
        raise ValueError("the model has no gated MLP of dense layers: it needs no sparse_ffn")
    return PassReport(report.name, report.changed, tuple(left))
