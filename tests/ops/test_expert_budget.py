"""ExpertBudget against its reference, and the reference against the rule as the README words it."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.experts import route
from ops.passes import compile_op, evaluate, infer

from ovspec_ops.moe.reference import expert_budget

EXPERTS, TOP_K = 12, 4


def tensors_of(
    indices: NDArray[np.int32],
    weights: NDArray[np.float32],
    budgets: list[int],
    begins: list[int] | None = None,
    past: list[int] | None = None,
) -> dict[str, ov.Tensor]:
    return {
        "indices": ov.Tensor(indices),
        "weights": ov.Tensor(weights),
        "verify_expert_budgets": ov.Tensor(np.array(budgets, np.int32)),
        "subsequence_begins": ov.Tensor(np.array(begins or [], np.int32)),
        "verify_past_lens": ov.Tensor(np.array(past or [], np.int32)),
    }


def attributes(layer: int = 0) -> dict[str, str | int]:
    return {"experts": EXPERTS, "layer": layer}


def coarse(rng: np.random.Generator, rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Routing in no order, with equal weights and absent pairs."""
    indices, _ = route(rng, rows, TOP_K, EXPERTS)
    weights = (rng.integers(1, 6, indices.shape) / 8).astype(np.float32)
    absent = rng.random(indices.shape) < 0.1
    return np.where(absent, -1, indices).astype(np.int32), np.where(absent, 0, weights).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_matches_the_reference(rows: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        indices, weights = coarse(rng, rows)
        budget = int(rng.integers(1, EXPERTS + 1))
        got = evaluate("ExpertBudget", tensors_of(indices, weights, [budget]), attributes())
        limited = np.ones(rows, bool)
        expected = expert_budget(indices, weights, limited, budget=budget, experts=EXPERTS)
        assert np.array_equal(expected[0], got[0]), seed
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-6)


def test_rows_out_of_verification_are_not_touched() -> None:
    indices, weights = route(np.random.default_rng(0), 9, TOP_K, EXPERTS)
    begins, past = [0, 3, 7, 9], [100, -1, 0]
    got = evaluate("ExpertBudget", tensors_of(indices, weights, [2], begins, past), attributes())
    limited = np.array([True] * 3 + [False] * 4 + [True] * 2)
    expected = expert_budget(indices, weights, limited, budget=2, experts=EXPERTS)
    assert np.array_equal(expected[0], got[0])
    assert np.array_equal(got[0][3:7], indices[3:7]) and np.array_equal(got[1][3:7], weights[3:7])
    assert (got[0][limited] == -1).any()


def test_no_budget_passes_everything_on() -> None:
    indices, weights = coarse(np.random.default_rng(0), 6)
    got = evaluate("ExpertBudget", tensors_of(indices, weights, [-1]), attributes())
    assert np.array_equal(got[0], indices) and np.array_equal(got[1], weights)


def test_every_layer_has_its_own_budget() -> None:
    indices, weights = route(np.random.default_rng(0), 1, TOP_K, EXPERTS)
    tensors = tensors_of(indices, weights, [-1, 1, 3])
    kept = [(evaluate("ExpertBudget", tensors, attributes(n))[0] >= 0).sum() for n in range(3)]
    assert kept == [4, 1, 3]


def test_compiled_graph_matches() -> None:
    indices, weights = route(np.random.default_rng(0), 8, TOP_K, EXPERTS)
    tensors = tensors_of(indices, weights, [6])
    got = infer(compile_op("ExpertBudget", tensors, attributes()), tensors)
    expected = expert_budget(indices, weights, np.ones(8, bool), budget=6, experts=EXPERTS)
    assert np.array_equal(expected[0], got[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-6)


def test_no_rows() -> None:
    empty = np.zeros((0, TOP_K), np.int32)
    got = evaluate("ExpertBudget", tensors_of(empty, empty.astype(np.float32), [2]), attributes())
    assert got[0].shape == (0, TOP_K)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(0, "1 to 12"), (13, "1 to 12"), (-2, "1 to 12")],
)
def test_budget_out_of_range_is_refused(budget: int, expected: str) -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    with pytest.raises(ValueError, match=rf"verify_expert_budgets\[0\] is {budget}, expected .* {expected}"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [budget]), attributes())


def test_a_nan_that_is_dropped_does_not_reach_what_stays() -> None:
    indices = np.array([[0, 1, 2], [0, 1, 3]], np.int32)
    weights = np.array([[0.5, 0.25, np.nan], [0.5, 0.25, 0.25]], np.float32)
    got = evaluate("ExpertBudget", tensors_of(indices, weights, [2]), attributes())
    assert got[0].tolist() == [[0, 1, -1], [0, 1, -1]]
    np.testing.assert_allclose(got[1], [[0.5, 0.25, 0], [2 / 3, 1 / 3, 0]], rtol=1e-6)


def test_nan_ranks_last_and_stays_in_its_row() -> None:
    """Many experts a row, so that an order that is no strict weak order would show (and run past the end)."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        indices = np.stack([rng.permutation(64)[:40] for _ in range(6)]).astype(np.int32)
        weights = rng.random(indices.shape, np.float32)
        broken = rng.random(6) < 0.5
        weights[broken] = np.where(rng.random((broken.sum(), 40)) < 0.5, np.nan, weights[broken])
        got = evaluate("ExpertBudget", tensors_of(indices, weights, [9]), {"experts": 64, "layer": 0})
        want = expert_budget(indices, weights, np.ones(6, bool), budget=9, experts=64)
        assert np.array_equal(want[0], got[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
        assert np.isfinite(got[1][~np.isnan(weights).any(axis=1)]).all()


def test_too_few_budgets_are_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    with pytest.raises(ValueError, match="verify_expert_budgets holds 1 values, expected one per layer"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [1]), attributes(layer=1))


def test_index_of_no_expert_is_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    indices[1, 1] = EXPERTS
    with pytest.raises(ValueError, match="indices hold 12, expected"):
        evaluate("ExpertBudget", tensors_of(indices, weights, [4]), attributes())


def test_table_of_sequences_that_fits_no_rows_is_refused() -> None:
    indices, weights = route(np.random.default_rng(0), 2, TOP_K, EXPERTS)
    for begins in ([0, 3], [1, 0], [0], [1, 2], [0, 1]):
        with pytest.raises(ValueError, match="ExpertBudget: subsequence_begins"):
            evaluate("ExpertBudget", tensors_of(indices, weights, [4], begins, [5]), attributes())


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, EXPERTS))
def test_mass_of_the_reference(seed: int, rows: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    indices, _ = route(rng, rows, TOP_K, EXPERTS)
    weights = (rng.integers(1, 6, indices.shape) / 8).astype(np.float32)
    kept, scaled = expert_budget(indices, weights, np.ones(rows, bool), budget=budget, experts=EXPERTS)
    firsts = set(np.take_along_axis(indices, weights.argmax(1)[:, None], 1)[:, 0].tolist())
    read, named = set(kept[kept >= 0].tolist()), set(indices.ravel().tolist())
    assert firsts <= read
    assert len(read) == max(len(firsts), min(budget, len(named)))
    mass = {expert: float(weights[indices == expert].sum()) for expert in named}
    for dropped in named - read:
        assert all(mass[expert] >= mass[dropped] for expert in read - firsts)
    np.testing.assert_allclose(scaled.sum(1), weights.sum(1), rtol=1e-6)
    assert np.array_equal(kept >= 0, np.isin(indices, list(read)))
