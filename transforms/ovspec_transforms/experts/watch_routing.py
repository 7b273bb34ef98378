"""Routing indices and weights as outputs of the model, for calibration."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.experts.moe_layers import (
    INDICES,
    SPARSE_MOE,
    WEIGHTS,
    MoELayer,
    is_sum_of_experts,
    layer_name,
    match_experts,
    moe_layers,
)
from ovspec_transforms.graph import add_output

ROUTING_INDICES = "routing_indices."
ROUTING_WEIGHTS = "routing_weights."


def watch_routing(model: ov.Model) -> list[MoELayer]:
    """Add the outputs `routing_indices.N` and `routing_weights.N`, `[rows, top_k]`, per layer with experts.

    Returns:
        The layers, as `moe_layers` numbers them; none for a model without experts of a known form.
    """
    layers = moe_layers(model)
    nodes = {
        layer_name(node): node
        for node in model.get_ops()
        if node.get_type_name() == SPARSE_MOE or is_sum_of_experts(node)
    }
    for layer in layers:
        node = nodes[layer.name]
        if node.get_type_name() == SPARSE_MOE:
            routing = [node.input(position).get_source_output() for position in (INDICES, WEIGHTS)]
        else:
            found = match_experts(node)
            routing = [found.indices, found.shares]
        for prefix, source in zip((ROUTING_INDICES, ROUTING_WEIGHTS), routing, strict=True):
            # A node of its own: the source may be an output that has names already, or several layers'.
            named = ops.convert(source, ov.Type.i32 if prefix == ROUTING_INDICES else ov.Type.f32)
            add_output(model, named, f"{prefix}{layer.index}")
    return layers
