"""Expert budgets in the graph: our operation, stock operations and the rules agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from tiers import by_tier
from transforms.conftest import ExportedMoE
from transforms.moe_models import EXACT, EXPERTS, FAMILIES, LAYERS, TOP_K, logits, tiny_moe

from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import (
    budget_experts,
    budget_experts_stock,
    route_rows,
    sparse_moe,
    to_paged,
)
from ovspec_transforms.graph import nodes_of_type


def native(model: ov.Model) -> ov.Model:
    sparse_moe(model)
    assert budget_experts(model).count == LAYERS
    return model


def stock(model: ov.Model) -> ov.Model:
    assert budget_experts_stock(model).count == LAYERS
    return model


def budgets(*values: int) -> dict[str, NDArray[Any]]:
    return {"verify_expert_budgets": np.array(values, np.int32)}


def assert_same(expected: NDArray[np.float32], got: NDArray[np.float32]) -> None:
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()


def test_both_backends_agree_and_limit() -> None:
    dense, _ = logits(tiny_moe("fp32"))
    ours, theirs = native(tiny_moe("fp32")), stock(tiny_moe("fp32"))
    for model in (ours, theirs):
        got, _ = logits(model, **budgets(-1, -1))
        assert_same(dense, got)
    for budget in (3, 5, 8):
        got, read = logits(ours, **budgets(budget, budget))
        other, read_stock = logits(theirs, **budgets(budget, budget))
        assert_same(got, other)
        # The stock backend names top_k different experts per row, so it reads at least as many.
        assert [max(count, TOP_K) for count in read] == read_stock
        assert (np.abs(got - dense).max() > 1e-3 * np.abs(dense).max()) == (budget < EXPERTS)


@pytest.mark.parametrize("family", by_tier(FAMILIES, ["qwen2_moe"]))
def test_exported_families_agree(exported_moe: ExportedMoE, family: str) -> None:
    inputs = budgets(4, 5)
    got, read = logits(native(exported_moe(family, "int8")), **inputs)
    other, read_stock = logits(stock(exported_moe(family, "int8")), **inputs)
    assert_same(got, other)
    assert read == read_stock


def test_experts_read_of_one_row() -> None:
    assert logits(native(tiny_moe()), 1, **budgets(-1, -1))[1] == [TOP_K] * LAYERS


def test_the_stock_backend_keeps_the_fusion_of_experts() -> None:
    compiled = ov.Core().compile_model(stock(tiny_moe()), "CPU", EXACT)
    kinds = [node.get_rt_info()["layerType"].value for node in compiled.get_runtime_model().get_ops()]
    assert kinds.count("GatherMatmul") == 3 * LAYERS


def test_rows_of_other_sequences_are_left_in_a_routed_graph() -> None:
    model = tiny_moe()
    to_paged(model)
    route_rows(model)
    sparse_moe(model)
    budget_experts(model)
    names = {name for node in model.get_parameters() for name in node.output(0).get_names()}
    for node in nodes_of_type(model, "ExpertBudget"):
        sources = [port.get_source_output() for port in node.inputs()]
        assert sources[3].get_names() & names == {"subsequence_begins"}
        assert sources[4].get_names() & names == {"verify_past_lens"}


def test_inputs_and_output_are_shared_by_layers() -> None:
    model = native(tiny_moe())
    shapes = {
        name: list(node.output(0).get_partial_shape())
        for node in model.get_parameters()
        for name in node.output(0).get_names()
        if "expert" in name
    }
    assert shapes == {"verify_expert_budgets": [LAYERS]}
    assert list(model.output("experts_read").get_partial_shape()) == [LAYERS]


def test_a_model_without_experts_is_refused() -> None:
    dense = build_model(get_shape("qwen3-0.6b", layers=1, vocab_size=96), "int8")
    with pytest.raises(ValueError, match="no SparseMoE operation to give a budget"):
        budget_experts(dense)
    with pytest.raises(ValueError, match="no routed experts of a known form"):
        budget_experts_stock(dense)
