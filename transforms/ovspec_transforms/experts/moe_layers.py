"""The routed experts of a model, as optimum-intel exports them and as SparseMoE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov

from ovspec_transforms.experts.gated_experts import (
    GatedExperts,
    behind,
    expect,
    match_gated,
    peel,
    product_of,
)
from ovspec_transforms.graph import source_node
from ovspec_transforms.weights.expert_weights import UnknownPatternError

SPARSE_MOE = "SparseMoE"
INDICES, WEIGHTS, GATE = 1, 2, 3
EXPERTS_OF = "/experts"  # behind the name of a layer whose SparseMoE another operation brings into shape


@dataclass(frozen=True, slots=True)
class MoELayer:
    """The routed experts of one layer.

    Attributes:
        name: friendly name of the node that sums the experts.
        index: number among the layers with experts, in graph order.
        experts: their number.
        top_k: number of experts per row.
        native: whether they are a SparseMoE operation already.
    """

    name: str
    index: int
    experts: int
    top_k: int
    native: bool


@dataclass(frozen=True, slots=True)
class ExpertPattern:
    """The nodes of one layer's experts: all of them as batched products, then weighted and summed.

    `tokens` is f32 `[rows, hidden]`, `indices` `[rows, top_k]` and `shares` f32 `[rows, top_k]`.
    """

    total: ov.Node
    tokens: ov.Output
    gated: GatedExperts
    scatter: ov.Node
    indices: ov.Output
    shares: ov.Output
    experts: int
    top_k: int


def _shares(scatter: ov.Node) -> ov.Output:
    """The routing weights that a scatter spreads; a Slice that takes all of them is skipped."""
    output = scatter.input(2).get_source_output()
    node = output.get_node()
    if node.get_type_name() != "Slice":
        return output
    start, stop = source_node(node, 1), peel(source_node(node, 2), "Convert")
    whole = start.get_type_name() == "Constant" and not np.any(start.get_data())
    if not whole or stop.get_type_name() != "ShapeOf":
        raise UnknownPatternError(f"Slice {node.get_friendly_name()!r} takes a part of the routing weights")
    return node.input(0).get_source_output()


def match_experts(total: ov.Node) -> ExpertPattern:
    """Read the experts that the ReduceSum `total` adds up.

    Raises:
        UnknownPatternError: the graph before `total` has another form.
    """
    weighted = behind(total, "Multiply")
    gated = match_gated(peel(source_node(weighted, 0), "Reshape"))
    copies = behind(gated.gate.matmul, "Reshape")
    if source_node(gated.up.matmul, 0).get_friendly_name() != copies.get_friendly_name():
        raise UnknownPatternError("gate and up projections take different rows")
    tile = behind(copies, "Tile")
    spread = peel(source_node(weighted, 1), "Unsqueeze", "Reshape", "Transpose")
    scatter = expect(spread, "ScatterElementsUpdate", "ScatterUpdate")
    indices, shares = scatter.input(1).get_source_output(), _shares(scatter)
    shape, dims = indices.get_partial_shape(), gated.gate.matmul.input(1).get_partial_shape()
    if len(shape) != 2 or shape[1].is_dynamic or len(dims) != 3 or dims[0].is_dynamic:
        raise UnknownPatternError(f"routing is of shape {shape} over experts of shape {dims}")
    tokens = tile.input(0).get_source_output()
    top_k, experts = int(shape[1].get_length()), int(dims[0].get_length())
    return ExpertPattern(total, tokens, gated, scatter, indices, shares, experts, top_k)


def is_sum_of_experts(node: ov.Node) -> bool:
    """Whether a ReduceSum adds up experts: its terms are `[experts, rows, hidden]` products, weighted."""
    if node.get_type_name() != "ReduceSum" or source_node(node).get_type_name() != "Multiply":
        return False
    product = product_of(peel(source_node(source_node(node)), "Reshape"))[0]
    return product.get_type_name() == "MatMul" and len(product.input(1).get_partial_shape()) == 3


def router_of(output: ov.Output) -> ov.Node | None:
    """The TopK that routing indices come from, directly or through elementwise operations and a budget."""
    node = output.get_node()
    while node.get_type_name() in ("Convert", "Slice", "ExpertBudget"):
        node = source_node(node)
    return node if node.get_type_name() == "TopK" else None


def layer_name(node: ov.Node) -> str:
    """The name of the layer whose experts a node computes."""
    name: str = node.get_friendly_name()
    return name.removesuffix(EXPERTS_OF)


def moe_layers(model: ov.Model) -> list[MoELayer]:
    """The layers with routed experts of a known form, in graph order; none for a dense model."""
    layers: list[MoELayer] = []
    for node in model.get_ordered_ops():
        native = node.get_type_name() == SPARSE_MOE
        if native:
            shape = node.input(INDICES).get_partial_shape()
            experts = int(node.input(GATE).get_partial_shape()[0].get_length())
            top_k = int(shape[1].get_length())
        elif is_sum_of_experts(node):
            try:
                pattern = match_experts(node)
            except UnknownPatternError:
                continue
            experts, top_k = pattern.experts, pattern.top_k
        else:
            continue
        layers.append(MoELayer(layer_name(node), len(layers), experts, top_k, native))
    return layers
