"""ExpertBudget against its reference, and the reference against the rules as the README words them."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.experts import route
from ops.passes import compile_op, evaluate, infer

from ovspec_ops.moe import expert_budget

EXPERTS, TOP_K = 12, 4
RULES = ("mass", "share", "top_k")


def tensors_of(
    indices: NDArray[np.int32],
    weights: NDArray[np.float32],
    budgets: list[int],
    bounds: list[float] | None = None,
    begins: list[int] | None = None,
    past: list[int] | None = None,
) -> dict[str, ov.Tensor]:
    return {
        "indices": ov.Tensor(indices),
        "weights": ov.Tensor(weights),
        "verify_expert_budgets": ov.Tensor(np.array(budgets, np.int32)),
        "verify_expert_share_bounds": ov.Tensor(np.array(bounds or [], np.float32)),
        "subsequence_begins": ov.Tensor(np.array(begins or [], np.int32)),
        "verify_past_lens": ov.Tensor(np.array(past or [], np.int32)),
    }


def attributes(rule: str, layer: int = 0) -> dict[str, str | int]:
    return {"rule": rule, "experts": EXPERTS, "layer": layer}


def coarse(rng: np.random.Generator, rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Routing in no order, with equal weights and absent pairs."""
    indices, _ = route(rng, rows, TOP_K, EXPERTS)
    weights = (rng.integers(1, 6, indices.shape) / 8).astype(np.float32)
    absent = rng.random(indices.shape) < 0.1
    return np.where(absent, -1, indices).astype(np.int32), np.where(absent, 0, weights).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_matches_the_reference(rule: str, rows: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        indices, weights = coarse(rng, rows)
        most = EXPERTS if rule == "mass" else TOP_K
        budget = int(rng.integers(1, most + 1))
        bound = float(rng.choice([0.1, 0.25, 0.5]))
        got = evaluate("ExpertBudget", tensors_of(indices, weights, [budget], [bound]), attributes(rule))
        limited = np.ones(rows, bool)
        expected = expert_budget(
            indices, weights, limited, rule=rule, budget=budget, bound=bound, experts=EXPERTS
        )
        assert np.array_equal(expected[0], got[0]), seed
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_rows_out_of_verification_are_not_touched(rule: str) -> None:
    indices, weights = route(np.random.default_rng(0), 9, TOP_K, EXPERTS)
    begins, past = [0, 3, 7, 9], [100, -1, 0]
    got = evaluate("ExpertBudget", tensors_of(indices, weights, [2], [0.9], begins, past), attributes(rule))
    limited = np.array([True] * 3 + [False] * 4 + [True] * 2)
    expected = expert_budget(indices, weights, limited, rule=rule, budget=2, bound=0.9, experts=EXPERTS)
    assert np.array_equal(expected[0], got[0])
    assert np.array_equal(got[0][3:7], indices[3:7]) and np.array_equal(got[1][3:7], weights[3:7])
    assert (got[0][limited] == -1).any()


@pytest.mark.parametrize("rule", RULES)
def test_no_budget_passes_everything_on(rule: str) -> None:
    indices, weights = coarse(np.random.default_rng(0), 6)
    got = evaluate("ExpertBudget", tensors_of(indices, weights, [-1], [0.5]), attributes(rule))
    assert np.array_equal(got[0], indices) and np.array_equal(got[1], weights)


def test_every_layer_has_its_own_budget() -> None:
    indices, weights = route(np.random.default_rng(0), 8, TOP_K, EXPERTS)
    tensors = tensors_of(indices, weights, [-1, 1, 3])
    kept = [(evaluate("ExpertBudget", tensors, attributes("top_k", n))[0] >= 0).sum(1) for n in range(3)]
    assert [set(counts.tolist()) for counts in kept] == [{4}, {1}, {3}]


def test_compiled_graph_matches() -> None:
    indices, weights = route(np.random.default_rng(0), 8, TOP_K, EXPERTS)
    tensors = tensors_of(indices, weights, [6])
    got = infer(compile_op("ExpertBudget", tensors, attributes("mass")), tensors)
    expected = expert_budget(indices, weights, np.ones(8, bool), rule="mass", budget=6, experts=EXPERTS)
    assert np.array_equal(expected[0], got[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-6)


def test_no_rows() -> None:
    empty = np.zeros((0, TOP_K), np.int32)
    for rule in RULES:
        got = evaluate(
            "ExpertBudget", tensors_of(empty, empty.astype(np.float32), [2], [0.5]), attributes(rule)
        )
        assert got[0].shape == (0, TOP_K)


@pytest.mark.parametrize(
    ("rule", "budget", "expected"),
    [("mass", 0, "1 to 12"), ("mass", 13, "1 to 12"), ("top_k", 5, "1 to 4"), ("share", -2, "0 to 4")],
)
def test_budget_out_of_range_is_refused(rule: str, budget: int, expected: str) -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    with pytest.raises(ValueError, match=rf"verify_expert_budgets\[0\] is {budget}, expected .* {expected}"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [budget], [0.5]), attributes(rule))


@pytest.mark.parametrize("rule", RULES)
def test_nan_ranks_last_and_stays_in_its_row(rule: str) -> None:
    """Many experts a row, so that an order that is no strict weak order would show (and run past the end)."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        indices = np.stack([rng.permutation(64)[:40] for _ in range(6)]).astype(np.int32)
        weights = rng.random(indices.shape, np.float32)
        broken = rng.random(6) < 0.5
        weights[broken] = np.where(rng.random((broken.sum(), 40)) < 0.5, np.nan, weights[broken])
        values = {"rule": rule, "experts": 64, "layer": 0}
        got = evaluate("ExpertBudget", tensors_of(indices, weights, [9], [0.2]), values)
        limited = np.ones(6, bool)
        want = expert_budget(indices, weights, limited, rule=rule, budget=9, bound=0.2, experts=64)
        assert np.array_equal(want[0], got[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
        assert np.isfinite(got[1][~np.isnan(weights).any(axis=1)]).all()
        if rule != "mass":  # there another row may choose all that a row keeps
            assert np.isnan(got[1][np.isnan(weights).any(axis=1)]).any(axis=1).all()


@pytest.mark.parametrize("bound", [np.nan, np.inf])
def test_bound_that_is_not_finite_is_refused(bound: float) -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    with pytest.raises(ValueError, match=r"verify_expert_share_bounds\[0\] is not finite"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [1], [bound]), attributes("share"))


def test_too_few_budgets_are_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    with pytest.raises(ValueError, match="verify_expert_budgets holds 1 values, expected one per layer"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [1]), attributes("mass", layer=1))


def test_unknown_rule_is_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    with pytest.raises(ValueError, match="attribute rule is 'best', expected mass, share or top_k"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [1]), attributes("best"))


def test_index_of_no_expert_is_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    indices[1, 1] = EXPERTS
    with pytest.raises(ValueError, match="indices hold 12, expected"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [4]), attributes("mass"))


def test_table_of_sequences_that_fits_no_rows_is_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    for begins in ([0, 3], [1, 0], [0]):
        with pytest.raises(ValueError, match="ExpertBudget: subsequence_begins"):
            evaluate("ExpertBudget", tensors_of(indices, weights, [4], None, begins, [5]), attributes("mass"))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, EXPERTS))
def test_mass_of_the_reference(seed: int, rows: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    indices, _ = route(rng, rows, TOP_K, EXPERTS)
    weights = (rng.integers(1, 6, indices.shape) / 8).astype(np.float32)
    kept, scaled = expert_budget(
        indices, weights, np.ones(rows, bool), rule="mass", budget=budget, experts=EXPERTS
    )
    firsts = set(np.take_along_axis(indices, weights.argmax(1)[:, None], 1)[:, 0].tolist())
    read, named = set(kept[kept >= 0].tolist()), set(indices.ravel().tolist())
    assert firsts <= read
    assert len(read) == max(len(firsts), min(budget, len(named)))
    mass = {expert: float(weights[indices == expert].sum()) for expert in named}
    for dropped in named - read:
        assert all(mass[expert] >= mass[dropped] for expert in read - firsts)
    np.testing.assert_allclose(scaled.sum(1), weights.sum(1), rtol=1e-6)
    assert np.array_equal(kept >= 0, np.isin(indices, list(read)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_share_of_the_reference(parts: list[int], most: int, bound: int) -> None:
    weights = np.array([parts], np.float32) / 8
    indices = np.arange(len(parts), dtype=np.int32)[None]
    kept, _ = expert_budget(
        indices, weights, np.ones(1, bool), rule="share", budget=most, bound=bound / 8, experts=8
    )
    dropped = (kept < 0).sum()
    lowest = sorted(parts)
    allowed = [m for m in range(len(parts)) if m <= most and 8 * sum(lowest[:m]) < bound * sum(parts)]
    assert dropped == max(allowed, default=0)
    assert sorted(weights[kept >= 0] * 8) == lowest[dropped:]
