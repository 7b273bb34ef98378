"""Intervals: they cover what is true as often as they say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from ovspec.eval.interval import Interval


@pytest.mark.parametrize(("hits", "total"), [(0, 3), (0, 20), (3, 20), (20, 20), (57, 200)])
def test_the_interval_of_a_share_is_wilsons(hits: int, total: int) -> None:
    found = Interval.of_share(hits, total)
    expected = stats.binomtest(hits, total).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert 0.0 <= found.low <= found.high <= 1.0 and "-" not in found.shown(".3f")


def test_intervals_of_pairs_cover_what_is_true() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        theirs = rng.normal(100, 40, 60)
        ours = theirs * 0.5 + rng.normal(3, 4, 60)  # pairs move together: their difference is what is known
        found = Interval.bootstrap(lambda a, b: (a - b * 0.5).mean(axis=-1), ours, theirs)
        covered += found.low <= 3 <= found.high
        assert found.high - found.low < 4
    assert covered >= 88


def test_the_interval_of_a_median() -> None:
    found = Interval.of_median([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0])
    assert found.value == 1.0 and 0.9 <= found.low < 1.0 < found.high <= 1.1
    assert Interval.of_median([0.97]) == Interval(0.97, 0.97, 0.97)


def test_many_examples_do_not_fill_the_memory() -> None:
    """Ten thousand examples end a run of hours: their resamples are not held together."""
    figures = np.random.default_rng(0).random((4, 10_000))
    tracemalloc.start()
    try:
        found = Interval.bootstrap(lambda a, b, c, d: (a + b + c + d).mean(axis=-1), *figures)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6 and 1.98 < found.low < found.value < found.high < 2.02
