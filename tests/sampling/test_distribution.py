"""Distributions over token ids, stored on their support or densely."""

from __future__ import annotations

import numpy as np
import pytest

from ovspec.sampling.sampling import Distribution


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
