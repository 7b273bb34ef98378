"""What every choice of the schedule `auto` is expected to cost and to yield."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.acceptance_model import ConfirmationRates
from ovspec.schedule.choice import Choice
from ovspec.schedule.cost_model import CostCell
from ovspec.schedule.schedule import StepState
from ovspec.schedule.throughput import Expectation, expect, with_commits

Array = NDArray[np.float64]
_LEAST_STAKE = 0.1  # plain steps; measured costs can say that a draft costs nothing, or less


class Expectations:
    """Expected costs and tokens of steps, from costs and rates of acceptance.

    Attributes:
        rates: tokens per microsecond by choice; empty before the first `update`.
        intervals: the best commit interval by budget scale, where there are commits.
    """

    def __init__(self) -> None:
        self.rates: dict[Choice, float] = {}
        self.intervals: dict[float, int] = {}
        self._steps: dict[float, Expectation] = {}

    def update(
        self,
        cell: CostCell,
        state: StepState,
        accepted: Array,
        offered: Array,
        confirmations: ConfirmationRates,
    ) -> None:
        """Work out all choices with as many draft tokens as there are rates.

        Args:
            cell: costs.
            state: of the step that comes.
            accepted: a_1 .. a_K, rates of acceptance by position, f64 `[K]`.
            offered: o_1 .. o_K, rates at which the drafter has another token, f64 `[K]`.
            confirmations: rates at which a commit confirms tokens.
        """
        self.rates = {}
        for scale in state.budget_scales:
            steps = expect(cell, scale, len(state.contexts), accepted, offered)
            if state.commit_intervals and scale < math.inf:
                confirmed = confirmations.at(scale).rate
                options = [
                    (with_commits(steps, cell, len(state.contexts), interval, confirmed), interval)
                    for interval in state.commit_intervals
                ]
                steps, self.intervals[scale] = max(options, key=lambda option: option[0].rates().max())
            self._steps[scale] = steps
            for tokens, rate in enumerate(steps.rates().tolist()):
                self.rates[Choice(tokens, scale)] = rate

    def cost(self, choice: Choice) -> float:
        """Microseconds of a step; of the longest draft there is where it asks for a longer one."""
        cost = self._steps[choice.scale].cost
        return float(cost[min(choice.tokens, len(cost) - 1)])

    def knows(self, choice: Choice) -> bool:
        """Whether there is a cost of a choice yet: passes of one kind say nothing of those of another."""
        return bool(self.rates) and self.cost(choice) > 0.0

    def loss(self, choice: Choice, than: Choice) -> float:
        """Microseconds that a step is expected to lose against another choice; a gain is negative."""
        return self.cost(choice) - float(self._steps[choice.scale].tokens[choice.tokens]) / self.rates[than]

    def stake(self, choice: Choice, plain: Choice, changes: float) -> float:
        """Plain steps that one failed step of a choice costs, with the microseconds of going there and back.

        0 where no plain step was measured yet: there is nothing to lose against.
        """
        if not self.knows(plain):
            return 0.0
        return max(_LEAST_STAKE, (self.cost(choice) + changes) / self.cost(plain) - 1.0)
