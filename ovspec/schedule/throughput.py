"""Expected tokens per second of every choice: goodput, as TurboSpec (arXiv 2406.14066) calls it.

Tokens of a step: 1 + sum over i of (o_1 a_1) .. (o_i a_i), with a_i the acceptance of position i after those
before it (in arXiv 2211.17192 a is the same everywhere) and o_i the rate of its being offered.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.acceptance import ConfirmationRates
from ovspec.schedule.cost import CostCell
from ovspec.schedule.schedule import Plan, StepState

Array = NDArray[np.float64]

# The draft length to start from.
DRAFT = 4


class Choice(NamedTuple):
    """Draft tokens per step, and the multiple of the sparse budget."""

    tokens: int
    scale: float

    @classmethod
    def of(cls, plan: Plan) -> Choice:
        """What a plan asks for."""
        return cls(plan.num_assistant_tokens, plan.budget_scale or 1.0)


class Throughput:
    """What steps are expected to yield and to cost.

    Args:
        cell: costs.
        state: of the step that comes.
        accepted: a_1 .. a_K, rates of acceptance by position, f64 `[K]`.
        offered: o_1 .. o_K, rates at which the drafter has another token, f64 `[K]`.
        confirmations: rates at which a commit confirms tokens.

    Attributes:
        costs: microseconds of a step, by choice.
        rates: tokens per microsecond by choice, for all sequences together.
        intervals: the best commit interval by budget scale, where there are commits.
    """

    def __init__(
        self,
        cell: CostCell,
        state: StepState,
        accepted: Array,
        offered: Array,
        confirmations: ConfirmationRates,
    ) -> None:
        self.costs: dict[Choice, float] = {}
        self.rates: dict[Choice, float] = {}
        self.intervals: dict[float, int] = {}
        sequences = len(state.contexts)
        for scale in state.budget_scales:
            tokens, cost = _step(cell, scale, sequences, accepted, offered)
            if state.commit_intervals and scale < math.inf:
                rate = confirmations.rate(scale)
                options = {
                    interval: _with_commits(tokens, cost, cell, interval, sequences, rate)
                    for interval in state.commit_intervals
                }
                best = max(options, key=lambda interval: float(np.max(np.divide(*options[interval]))))
                (tokens, cost), self.intervals[scale] = options[best], best
            for number in range(len(tokens)):
                self.costs[Choice(number, scale)] = float(cost[number])
                self.rates[Choice(number, scale)] = float(tokens[number] / cost[number])


def _step(
    cell: CostCell, scale: float, sequences: int, accepted: Array, offered: Array
) -> tuple[Array, Array]:
    """Tokens and microseconds of steps that draft k = 0 .. K tokens, each f64 `[K + 1]`."""
    survival = np.concatenate([[1.0], np.cumprod(offered)])
    tokens = sequences * np.concatenate([[1.0], 1.0 + np.cumsum(survival[1:] * np.cumprod(accepted))])
    sizes = sequences * np.arange(len(survival))
    verified = cell.verify_at(scale).predict(sizes)
    full = verified + cell.draft.predict(sizes)
    # A draft of k asked ends at p < k with probability survival[p] - survival[p + 1].
    ends = np.cumsum((survival[:-1] - survival[1:]) * full[:-1])
    cost = np.concatenate([[0.0], ends]) + survival * full
    cost[0] = verified[0]
    return tokens, np.maximum(cost, 1e-9)


def _with_commits(
    tokens: Array, cost: Array, cell: CostCell, interval: int, sequences: int, confirmed: float
) -> tuple[Array, Array]:
    """Provisional steps and their share of the dense pass that comes every `interval` tokens."""
    # The dense pass adds a token of its own, where it disagrees or at the end.
    kept = float(np.sum(confirmed ** np.arange(1, interval + 1))) + 1.0
    rows = sequences * interval
    commit = cell.commit.at(rows) if cell.commit.sizes else cell.verify_at(math.inf).at(rows)
    # The steps after a commit have shapes of their own again.
    return tokens * kept / interval, cost + tokens / rows * (commit + cell.switch)
