"""Expert budgets: the experts that the rows of a pass may use, decided once per pass."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.attention.route_rows import ROW_PAST_LENS, VERIFY_PAST_LENS
from ovspec_transforms.experts.moe_layers import INDICES, SPARSE_MOE, WEIGHTS, MoELayer, moe_layers
from ovspec_transforms.graph import NodePass, add_parameter, find_parameter, nodes_of_type, run_pass
from ovspec_transforms.report import PassReport
from ovspec_transforms.weights.expert_weights import source_node

ExpertRule = Literal["mass", "share", "top_k"]
EXPERT_RULES: tuple[ExpertRule, ...] = get_args(ExpertRule)
VERIFY_EXPERT_BUDGETS = "verify_expert_budgets"
VERIFY_EXPERT_SHARE_BOUNDS = "verify_expert_share_bounds"
EXPERTS_READ = "experts_read"
EXPERT_BUDGET = "ExpertBudget"
_SUBSEQUENCE_BEGINS = "subsequence_begins"


def check_expert_rule(rule: str) -> None:
    """Raise ValueError unless the rule is one of `EXPERT_RULES`."""
    if rule not in EXPERT_RULES:
        raise ValueError(f"expert rule {rule!r}: expected one of {', '.join(EXPERT_RULES)}")


def check_expert_budget(rule: str, budget: int, layers: list[MoELayer]) -> None:
    """Refuse a budget that is out of range in one of the layers.

    `mass`: experts per pass, from the layer's top-k to its number of experts; `top_k`: experts per row,
    1 to the layer's top-k; `share`: experts that a row may drop, 0 to the layer's top-k less one.

    Raises:
        ValueError: an unknown rule, or a budget out of range.
    """
    check_expert_rule(rule)
    for layer in layers:
        least, most, what = {
            "mass": (layer.top_k, layer.experts, f"its top-k to its {layer.experts} experts"),
            "top_k": (1, layer.top_k, f"1 to its top-k of {layer.top_k}"),
            "share": (0, layer.top_k - 1, f"0 to one less than its top-k of {layer.top_k}"),
        }[rule]
        if not least <= budget <= most:
            raise ValueError(
                f"expert budget {budget} of rule {rule!r} is out of range in layer {layer.name}: "
                f"expected {least} to {most} ({what})"
            )


class BudgetExperts(NodePass):
    """Put an ExpertBudget operation between the router and the experts of every SparseMoE."""

    def __init__(self, model: ov.Model, rule: ExpertRule) -> None:
        super().__init__(SPARSE_MOE)
        self._rule = rule
        self._layers = {layer.name: layer for layer in moe_layers(model)}
        shared = budget_inputs(model, len(self._layers), rule)
        self._shared = [*shared, *_verified_rows(model)]

    def rewrite(self, node: ov.Node) -> bool:
        """Limit one layer's routing."""
        if source_node(node, INDICES).get_type_name() == EXPERT_BUDGET:
            return False
        layer = self._layers[node.get_friendly_name()]
        routing = [node.input(position).get_source_output() for position in (INDICES, WEIGHTS)]
        attributes = {"rule": self._rule, "experts": layer.experts, "layer": layer.index}
        limited = ovspec_ops.create(EXPERT_BUDGET, [*routing, *self._shared], attributes)
        limited.set_friendly_name(f"{layer.name}/{EXPERT_BUDGET}")
        node.input(INDICES).replace_source_output(limited.output(0))
        node.input(WEIGHTS).replace_source_output(limited.output(1))
        return True


def budget_inputs(model: ov.Model, layers: int, rule: ExpertRule) -> list[ov.Output]:
    """The model's inputs with a budget per layer and, for `share`, a bound, else a constant without any."""
    budgets = add_parameter(model, VERIFY_EXPERT_BUDGETS, [layers], ov.Type.i32)
    if rule == "share":
        bounds = add_parameter(model, VERIFY_EXPERT_SHARE_BOUNDS, [layers], ov.Type.f32)
    else:
        bounds = ops.constant(np.zeros((0,), np.float32))
    return [budgets.output(0), bounds.output(0)]


def _verified_rows(model: ov.Model) -> list[ov.Output]:
    """What tells rows under verification from others; constants without elements where nothing does."""
    names = {name for node in model.get_parameters() for name in node.output(0).get_names()}
    if ROW_PAST_LENS in names:
        past_lens = add_parameter(model, VERIFY_PAST_LENS, [-1], ov.Type.i32)
        return [find_parameter(model, _SUBSEQUENCE_BEGINS).output(0), past_lens.output(0)]
    return [ops.constant(np.zeros((0,), np.int32)).output(0)] * 2


def add_experts_read(model: ov.Model, counts: list[ov.Output]) -> None:
    """Add the output `experts_read` i32 `[layers]` from one `[1]` per layer."""
    stacked = ops.concat(counts, 0)
    stacked.output(0).set_names({EXPERTS_READ})
    model.add_results([ops.result(stacked)])


def budget_experts(model: ov.Model, rule: ExpertRule = "mass") -> PassReport:
    """Let a pass limit the experts that it reads.

    Adds the input `verify_expert_budgets` i32 `[layers with experts]` (-1: no budget), for the rule
    `share` also `verify_expert_share_bounds` f32 of that shape, and the output `experts_read` i32 of that
    shape: how many experts each layer read. In a graph after `route_rows`, rows of sequences that are not
    under verification are left alone; in others the budget holds for all rows of the pass.

    Args:
        model: a model after `sparse_moe`.
        rule: "mass": the budget is experts per pass, those with the largest routing weight summed over
            the rows; a row always keeps its first. "share": of every row's experts the lowest are dropped,
            at most the budget, while their share is below the bound (arXiv 2512.21911). "top_k": the
            budget is experts per row.

    Raises:
        ValueError: an unknown rule, or a model without SparseMoE.
    """
    check_expert_rule(rule)
    nodes = nodes_of_type(model, SPARSE_MOE)
    if not nodes:
        raise ValueError("the model has no SparseMoE operation to give a budget: run sparse_moe(model) first")
    report = run_pass(model, BudgetExperts(model, rule)).require(len(nodes))
    add_experts_read(model, [node.output(1) for node in nodes_of_type(model, SPARSE_MOE)])
    return report
