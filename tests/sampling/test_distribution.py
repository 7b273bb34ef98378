"""Distributions over token ids, stored on their support or densely, against dense arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ovspec.sampling.sampling import Distribution


def distribution_pair(kind: str, vocab: int, seed: int) -> tuple[Distribution, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(vocab, 0.3))
    if kind == "dense":
        return Distribution.from_probs(probs), probs
    ids = np.flatnonzero(rng.random(vocab) < 0.4)
    probs[np.setdiff1d(np.arange(vocab), ids)] = 0
    probs /= probs.sum()
    return Distribution(probs[ids], ids), probs


@pytest.mark.parametrize("sizes", [(601, 601), (601, 640), (640, 601)], ids=["equal", "q_longer", "p_longer"])
@pytest.mark.parametrize("q_kind", ["dense", "sparse"])
@pytest.mark.parametrize("p_kind", ["dense", "sparse"])
def test_residual_matches_dense_arithmetic(p_kind: str, q_kind: str, sizes: tuple[int, int]) -> None:
    p, p_dense = distribution_pair(p_kind, sizes[0], 1)
    q, q_dense = distribution_pair(q_kind, sizes[1], 2)
    size = max(sizes)
    expected = np.maximum(np.pad(p_dense, (0, size - sizes[0])) - np.pad(q_dense, (0, size - sizes[1])), 0)
    residual = p.residual(q)
    assert residual is not None
    assert np.allclose(residual.dense(size), expected / expected.sum(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_residual_of_a_distribution_with_itself_is_empty(kind: str) -> None:
    p, _ = distribution_pair(kind, 83, 5)
    assert p.residual(p) is None


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("vocab", [5, 256, 257, 5003])
def test_sample_inverts_the_cumulative_distribution(kind: str, vocab: int) -> None:
    p, dense = distribution_pair(kind, vocab, 3)
    ends = np.cumsum(dense)
    for uniform in np.random.default_rng(0).random(400):
        assert p.sample(uniform) == int(np.searchsorted(ends, uniform, side="right"))
    for uniform in (0.0, 5e-324, 0.5, 1 - 2**-53):
        assert p.prob(p.sample(uniform)) > 0


def test_sample_never_returns_a_token_without_probability() -> None:
    dense = np.zeros(1000)
    dense[[256, 511, 700]] = [0.25, 0.5, 0.25]
    p = Distribution(dense)
    expected = {0.0: 256, 0.2499: 256, 0.25: 511, 0.7499: 511, 0.75: 700, 1 - 2**-53: 700}
    assert {uniform: p.sample(uniform) for uniform in expected} == expected


def test_probabilities_outside_the_support_are_zero() -> None:
    sparse = Distribution(np.array([0.25, 0.75]), np.array([3, 8]))
    assert [sparse.prob(token) for token in (-1, 0, 3, 5, 8, 9)] == [0, 0, 0.25, 0, 0.75, 0]
    dense = Distribution.from_probs(np.array([0.25, 0.75], dtype=np.float32))
    assert [dense.prob(token) for token in (-1, 0, 1, 2)] == [0, 0.25, 0.75, 0]


@pytest.mark.parametrize(
    "probs",
    [[0.5, 0.6], [1.5, -0.5], [np.nan, 1.0], [[1.0]], []],
    ids=["sum", "negative", "nan", "2d", "empty"],
)
def test_from_probs_refuses_what_is_no_distribution(probs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^probs must be one row of non-negative numbers that sum to 1"):
        Distribution.from_probs(np.array(probs))


def test_errors_name_the_argument() -> None:
    p = Distribution.one_hot(7)
    with pytest.raises(ValueError, match=r"^uniform must be in \[0, 1\), got 1"):
        p.sample(1.0)
    with pytest.raises(ValueError, match=r"^vocab_size must be at least 8, got 7"):
        p.dense(7)
