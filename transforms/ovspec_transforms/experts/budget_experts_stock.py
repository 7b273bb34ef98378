"""Expert budgets with stock operations only: the router changes, the experts stay as exported."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.experts.budget_experts import add_experts_read, budget_input
from ovspec_transforms.experts.moe_layers import ExpertPattern, match_experts, moe_layers
from ovspec_transforms.graph import f32, i32, rewrite_nodes
from ovspec_transforms.report import TransformReport


def _sum(node: ov.Node, axis: int) -> ov.Node:
    return ops.reduce_sum(node, i32(axis), keep_dims=True)


class _Routing:
    """Routing of one layer, experts of each row by descending weight: `indices`, `shares` `[rows, top_k]`."""

    def __init__(self, found: ExpertPattern) -> None:
        self._found = found
        self._zeros = found.scatter.input(0).get_source_output()
        ranked = ops.topk(found.shares, i32(found.top_k), -1, "max", "value", index_element_type="i32")
        indices = ops.convert(found.indices, "i32")
        self.indices = ops.gather_elements(indices, ranked.output(1), 1)
        self.shares = ranked.output(0)

    def _spread(self, indices: ov.Output, values: ov.Node) -> ov.Node:
        """`values` `[rows, n]` at their experts, zero elsewhere: f32 `[rows, experts]`."""
        return ops.scatter_elements_update(self._zeros, indices, values, i32(1))

    def _spread_ones(self, indices: ov.Node) -> ov.Node:
        return self._spread(indices, ops.broadcast(f32(1.0), ops.shape_of(indices, "i32")))

    def kept(self, budget: ov.Node) -> ov.Node:
        """1 for experts that a row keeps, else 0: f32 `[rows, top_k]`."""
        experts = self._found.experts
        mass = ops.reduce_sum(self._spread(self.indices, self.shares), i32(0))
        first = ops.gather(self.indices, i32([0]), i32(1))
        firsts = ops.reduce_max(self._spread_ones(first), i32(0))
        score = ops.add(mass, ops.multiply(firsts, f32(1e6)))  # above any sum of weights
        order = ops.topk(score, i32(experts), -1, "max", "value", index_element_type="i32").output(1)
        count = ops.maximum(budget, ops.convert(ops.reduce_sum(firsts, i32(0)), "i32"))
        places = i32(range(experts))
        within = ops.convert(ops.less(places, count), "f32")
        zeros = ops.constant(np.zeros(experts, np.float32))
        by_expert = ops.scatter_elements_update(zeros, order, within, i32(0))
        kept = ops.greater(ops.gather(by_expert, self.indices, i32(0)), f32(0.5))
        return ops.convert(ops.logical_or(kept, ops.less(budget, i32(0))), "f32")

    def limited(self, kept: ov.Node) -> tuple[ov.Output, ov.Output, ov.Output]:
        """Indices and weights for the scatter, and how many experts they name, i32 `[1]`.

        A row replaces the experts that it drops by others with weight zero, first by experts that other rows
        keep. The products then read no more experts than the rows keep, whatever kernel runs them.
        """
        remaining = ops.multiply(self.shares, kept)
        factor = ops.divide(_sum(self.shares, 1), _sum(remaining, 1))
        shares = self._spread(self.indices, ops.multiply(remaining, factor))
        own = self._spread(self.indices, kept)
        preference = ops.add(ops.multiply(own, f32(2.0)), ops.reduce_max(own, i32(0), keep_dims=True))
        top = i32(self._found.top_k)
        named = ops.topk(preference, top, -1, "max", "value", index_element_type="i32").output(1)
        read = ops.reduce_max(self._spread_ones(named), i32(0), keep_dims=True)
        count = ops.reshape(ops.convert(_sum(read, 1), "i32"), [1], special_zero=False)
        weights = ops.gather_elements(shares, named, 1)
        dtype = self._found.scatter.input(1).get_element_type()
        indices = named if dtype == ov.Type.i32 else ops.convert(named, dtype).output(0)
        return indices, weights.output(0), count.output(0)


def budget_experts_stock(model: ov.Model) -> TransformReport:
    """As `budget_experts`, for a model whose experts are as optimum-intel exports them, on any device.

    Only the router is edited. Inputs and outputs are those of `budget_experts`, but the budget holds for
    all rows of a pass: give -1 in a pass with rows that are not under verification.

    Raises:
        ValueError: no layer with experts of a known form.
    """
    layers = {layer.name: layer for layer in moe_layers(model) if not layer.native}
    if not layers:
        raise ValueError("the model has no routed experts of a known form to give a budget")
    budgets, counts = budget_input(model, len(layers)), dict[str, ov.Output]()

    def rewrite(node: ov.Node) -> bool:
        """Edit a layer's routing before the scatter that passes it to the experts."""
        layer = layers.get(node.get_friendly_name())
        if layer is None:
            return False
        found = match_experts(node)
        routing = _Routing(found)
        kept = routing.kept(ops.gather(budgets, i32(layer.index), i32(0)))
        indices, weights, counts[layer.name] = routing.limited(kept)
        found.scatter.input(1).replace_source_output(indices)
        found.scatter.input(2).replace_source_output(weights)
        return True

    report = rewrite_nodes(model, "BudgetExpertsStock", "ReduceSum", rewrite).require(len(layers))
    add_experts_read(model, list(counts.values()))
    return report
