"""Expected tokens per second of a choice: pure functions of costs and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.cost_model import CostCell

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What steps with k = 0 .. K draft tokens are expected to do, each f64 `[K + 1]`.

    Attributes:
        tokens: emitted per step, over all sequences.
        cost: microseconds per step at the usual pace.
    """

    tokens: Array
    cost: Array

    def rates(self) -> Array:
        """Tokens per microsecond, f64 `[K + 1]`."""
        rates: Array = self.tokens / np.maximum(self.cost, 1e-9)
        return rates


def expect(cell: CostCell, scale: float, sequences: int, accepted: Array, offered: Array) -> Expectation:
    """Steps whose drafts are verified at one budget scale.

    Args:
        cell: costs.
        scale: multiple of the sparse budget.
        sequences: running together.
        accepted: a_1 .. a_K, rates of acceptance by position, f64 `[K]`.
        offered: o_1 .. o_K, rates at which the drafter has another token, f64 `[K]`.
    """
    survival = np.concatenate([[1.0], np.cumprod(offered)])
    gains = survival[1:] * np.cumprod(accepted)
    tokens = sequences * np.concatenate([[1.0], 1.0 + np.cumsum(gains)])
    sizes = sequences * np.arange(len(survival))
    verified = cell.verify_at(scale).predict(sizes) + cell.host.predict(sizes)
    full = verified + cell.draft.predict(sizes)
    # A draft of k asked ends at p < k with probability survival[p] - survival[p + 1].
    ends = np.concatenate([[0.0], np.cumsum((survival[:-1] - survival[1:]) * full[:-1])])
    # Two steps in a row rarely draft alike where the drafter offers now more, now less.
    squares = np.concatenate([[0.0], np.cumsum((survival[:-1] - survival[1:]) ** 2)])
    changes = 1.0 - squares - survival**2
    cost = ends + survival * full + changes * cell.switch
    cost[0] = verified[0]
    return Expectation(tokens, cost)


def with_commits(
    steps: Expectation, cell: CostCell, sequences: int, interval: int, confirmed: float
) -> Expectation:
    """Provisional steps and their share of the dense pass that comes every `interval` tokens.

    Args:
        steps: of sparse verification.
        cell: costs.
        sequences: running together.
        interval: provisional tokens of a sequence per commit.
        confirmed: rate c at which the dense pass confirms a token whose predecessors it confirmed.
    """
    # The dense pass adds a token of its own, where it disagrees or at the end.
    kept = float(np.sum(confirmed ** np.arange(1, interval + 1))) + 1.0
    rows = sequences * interval
    commit = cell.commit.at(rows) if cell.commit.sizes else cell.verify_at(math.inf).at(rows)
    share = steps.tokens / rows
    # The steps after a commit have shapes of their own again.
    return Expectation(steps.tokens * kept / interval, steps.cost + share * (commit + cell.switch))
