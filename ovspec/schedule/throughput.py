"""Expected tokens per second of every choice: goodput, as TurboSpec (arXiv 2406.14066) calls it.

Tokens of a step: 1 + sum over i of (o_1 a_1) .. (o_i a_i), with a_i the acceptance of position i after those
before it (in arXiv 2211.17192 a is the same everywhere) and o_i the rate of its being offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ovspec.schedule.acceptance import AcceptanceModel, Array, ConfirmationRates
from ovspec.schedule.cost import CostCell
from ovspec.schedule.schedule import Plan, StepState

# The draft length to start from, and those to choose from.
DRAFT = 4
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 63)


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
        longest: most draft tokens.
        acceptance: rates at which draft tokens are offered and accepted.
        confirmations: rates at which a commit confirms tokens.

    Attributes:
        longest: most draft tokens of a choice.
        intervals: the best commit interval by budget scale, where there are commits.
    """

    def __init__(
        self,
        cell: CostCell,
        state: StepState,
        longest: int,
        acceptance: AcceptanceModel,
        confirmations: ConfirmationRates,
    ) -> None:
        self.intervals: dict[float, int] = {}
        self._costs: dict[float, list[float]] = {}
        self._rates: dict[float, list[float]] = {}
        sequences, self.longest = len(state.contexts), longest
        # Of trees only the largest: `AutoSchedule.least_confidence` decides how much of each is verified.
        self._lengths = (0, longest) if state.trees else _LENGTHS
        accepted, offered = acceptance.rates(longest), acceptance.offers(longest)
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
            self._costs[scale], self._rates[scale] = cost.tolist(), (tokens / cost).tolist()

    def cost(self, choice: Choice) -> float:
        """Microseconds of a step."""
        return self._costs[choice.scale][choice.tokens]

    def rate(self, choice: Choice) -> float:
        """Tokens per microsecond, of all sequences together."""
        return self._rates[choice.scale][choice.tokens]

    def best(self, allowed: Callable[[Choice], bool] = lambda choice: True) -> Choice:
        """The choice of most tokens per second among those allowed; the first one where none is."""
        choices = [Choice(k, scale) for scale in self._rates for k in self._lengths if k <= self.longest]
        return max(filter(allowed, choices), key=self.rate, default=choices[0])


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
    ends = np.concatenate([[0.0], np.cumsum((survival[:-1] - survival[1:]) * full[:-1])])
    cost = ends + survival * full
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
