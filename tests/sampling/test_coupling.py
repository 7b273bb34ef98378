"""Coupled sampling: the law of its tokens, and how often a draft agrees with the target."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ovspec.sampling.coupling import Coupling
from ovspec.sampling.sampling import Distribution

P = np.array([0.4, 0.05, 0.3, 0.0, 0.25])
Q = np.array([0.1, 0.3, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("vary", ["seed", "sequence", "position"])
def test_tokens_follow_p(vary: str) -> None:
    p = Distribution(P)
    runs = 6_000
    if vary == "seed":
        tokens = [Coupling(seed).draw(p, 7) for seed in range(runs)]
    elif vary == "sequence":
        tokens = [Coupling(5, index).draw(p, 7) for index in range(runs)]
    else:
        coupling = Coupling(5)
        tokens = [coupling.draw(p, position) for position in range(runs)]
    counts = np.bincount(tokens, minlength=P.size)
    assert counts[3] == 0
    assert stats.chisquare(counts[P > 0], runs * P[P > 0]).pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 32])
def test_positions_are_independent(lag: int) -> None:
    coupling, p = Coupling(3), Distribution(P)
    tokens = np.array([coupling.draw(p, position) for position in range(6_000)])
    table = np.zeros((P.size, P.size))
    np.add.at(table, (tokens[:-lag], tokens[lag:]), 1)
    assert stats.chi2_contingency(table[P > 0][:, P > 0]).pvalue > 1e-3


def test_exponentials_are_exponential() -> None:
    draws = Coupling(9, 4).exponentials(11, np.arange(50_000))
    assert stats.kstest(draws, "expon").pvalue > 1e-3
    assert np.isfinite(draws).all() and draws.min() > 0


def test_a_draft_agrees_as_often_as_the_race_promises() -> None:
    """With probability sum_x 1 / sum_y max(p(y)/p(x), q(y)/q(x)); a draft of its own would be worse."""
    p, q, runs = Distribution(P), Distribution(Q), 6_000
    both = [x for x in range(P.size) if P[x] > 0]
    expected = sum(1 / np.maximum(P / P[x], Q / Q[x]).sum() for x in both)
    coupling = Coupling(1)
    agreed = sum(coupling.draw(p, i) == coupling.draw(q, i) for i in range(runs))
    assert stats.binomtest(agreed, runs, expected).pvalue > 1e-3
    assert expected > (P * Q).sum() + 0.2


def test_a_support_of_its_own_makes_no_difference() -> None:
    kept = np.flatnonzero(P)
    dense, sparse = Distribution(P), Distribution(P[kept], kept)
    for position in range(200):
        assert Coupling(2).draw(dense, position) == Coupling(2).draw(sparse, position)


def test_numbers_belong_to_seed_sequence_and_position() -> None:
    ids = np.arange(3)
    keys = [(seed, index, position) for seed in range(3) for index in range(3) for position in range(3)]
    rows = {tuple(Coupling(seed, index).exponentials(position, ids)) for seed, index, position in keys}
    assert len(rows) == 27
    assert tuple(Coupling(1, 2).exponentials(0, ids)) in rows
