"""Expert budgets: the experts that the rows of a pass may use, decided once per pass."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.attention.route_rows import VERIFY_PAST_LENS, VERIFY_TABLES
from ovspec_transforms.experts.moe_layers import INDICES, SPARSE_MOE, WEIGHTS, layer_name, moe_layers
from ovspec_transforms.graph import (
    add_output,
    add_parameter,
    find_parameter,
    nodes_of_type,
    rewrite_nodes,
    source_node,
)
from ovspec_transforms.report import TransformReport

VERIFY_EXPERT_BUDGETS = "verify_expert_budgets"
EXPERTS_READ = "experts_read"
EXPERT_BUDGET = "ExpertBudget"
_SUBSEQUENCE_BEGINS = "subsequence_begins"


def budget_input(model: ov.Model, layers: int) -> ov.Output:
    """Add the model's input with a budget per layer."""
    return add_parameter(model, VERIFY_EXPERT_BUDGETS, [layers], ov.Type.i32).output(0)


def _verified_rows(model: ov.Model) -> list[ov.Output]:
    """Inputs that mark the rows under verification; empty constants where the graph does not mark them."""
    names = {name for node in model.get_parameters() for name in node.output(0).get_names()}
    if VERIFY_TABLES in names:
        past_lens = add_parameter(model, VERIFY_PAST_LENS, [-1], ov.Type.i32)
        return [find_parameter(model, _SUBSEQUENCE_BEGINS).output(0), past_lens.output(0)]
    return [ops.constant(np.zeros((0,), np.int32)).output(0)] * 2


def add_experts_read(model: ov.Model, counts: list[ov.Output]) -> None:
    """Add the output `experts_read` i32 `[layers]` from one `[1]` per layer."""
    add_output(model, ops.concat(counts, 0), EXPERTS_READ)


def budget_experts(model: ov.Model) -> TransformReport:
    """Let a pass limit the experts that it reads.

    Adds the input `verify_expert_budgets` i32 `[layers with experts]`: experts of a layer that a pass reads,
    every row's first expert and those with the largest routing weight summed over the rows; -1: no budget.
    Adds the output `experts_read` i32 of that shape: how many experts each layer read. In a graph after
    `route_rows`, rows of sequences that are not under verification are left alone; in others the budget holds
    for all rows of the pass.

    Args:
        model: a model after `sparse_moe`; changed in place.

    Raises:
        ValueError: a model without SparseMoE.
    """
    nodes = nodes_of_type(model, SPARSE_MOE)
    if not nodes:
        raise ValueError("the model has no SparseMoE operation to give a budget: run sparse_moe(model) first")
    layers = {layer.name: layer for layer in moe_layers(model)}
    shared = [budget_input(model, len(layers)), *_verified_rows(model)]

    def rewrite(node: ov.Node) -> bool:
        """Put an ExpertBudget between a layer's router and its experts."""
        if source_node(node, INDICES).get_type_name() == EXPERT_BUDGET:
            return False
        layer = layers[layer_name(node)]
        routing = [node.input(position).get_source_output() for position in (INDICES, WEIGHTS)]
        attributes = {"experts": layer.experts, "layer": layer.index}
        limited = ovspec_ops.create(EXPERT_BUDGET, [*routing, *shared], attributes)
        limited.set_friendly_name(f"{layer.name}/{EXPERT_BUDGET}")
        node.input(INDICES).replace_source_output(limited.output(0))
        node.input(WEIGHTS).replace_source_output(limited.output(1))
        return True

    report = rewrite_nodes(model, "BudgetExperts", SPARSE_MOE, rewrite).require(len(nodes))
    add_experts_read(model, [node.output(1) for node in nodes])
    return report
