"""Expected tokens per second of every choice: goodput, as TurboSpec (arXiv 2406.14066) calls it.

Tokens of a step: 1 + sum over i of (o_1 a_1) .. (o_i a_i), with a_i the acceptance of position i after those
before it (in arXiv 2211.17192 a is the same everywhere) and o_i the rate of its being offered.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ovspec.schedule.acceptance import AcceptanceModel, ConfirmationRates
from ovspec.schedule.cost import Array, CostCell
from ovspec.schedule.schedule import StepState


class Choice(NamedTuple):
    """Draft tokens per step, and the multiple of the sparse budget."""

    tokens: int
    scale: float


class Throughput:
    """What steps are expected to yield and to cost.

    Args:
        cell: costs.
        state: of the step that comes.
        acceptance: a_i and o_i.
        confirmations: rates at which a commit confirms tokens.
        longest: K, the longest draft.

    Attributes:
        cell: costs.
        intervals: the best commit interval by budget scale, where there are commits.
    """

    def __init__(
        self,
        cell: CostCell,
        state: StepState,
        acceptance: AcceptanceModel,
        confirmations: ConfirmationRates,
        longest: int,
    ) -> None:
        self.cell = cell
        self.intervals: dict[float, int] = {}
        # Tokens and microseconds of steps that draft k = 0 .. K tokens, by budget scale.
        self._steps: dict[float, tuple[Array, Array]] = {}
        sequences = len(state.contexts)
        survival = np.concatenate([[1.0], np.cumprod(acceptance.offered.means(longest))])
        likely = survival[1:] * np.cumprod(acceptance.accepted.means(longest))
        tokens = sequences * np.concatenate([[1.0], 1.0 + np.cumsum(likely)])
        sizes = sequences * np.arange(len(survival))
        drafting = cell.draft.predict(sizes)
        for scale in state.budget_scales:
            verified = cell.verify_at(scale).predict(sizes)
            full = verified + drafting
            # A draft of k asked ends at p < k with probability survival[p] - survival[p + 1].
            ends = np.cumsum((survival[:-1] - survival[1:]) * full[:-1])
            cost = np.concatenate([[0.0], ends]) + survival * full
            cost[0] = verified[0]
            step = tokens, np.maximum(cost, 1e-9)
            if state.commit_intervals and scale < math.inf:
                rate = confirmations.rate(scale)
                options = [_with_commits(*step, cell, n, sequences, rate) for n in state.commit_intervals]
                best = int(np.argmax([np.max(tokens / cost) for tokens, cost in options]))
                step, self.intervals[scale] = options[best], state.commit_intervals[best]
            self._steps[scale] = step

    def cost(self, choice: Choice) -> float:
        """Microseconds of a step."""
        return float(self._steps[choice.scale][1][choice.tokens])

    def rate(self, choice: Choice) -> float:
        """Tokens per microsecond, for all sequences together."""
        tokens, costs = self._steps[choice.scale]
        return float(tokens[choice.tokens] / costs[choice.tokens])


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
