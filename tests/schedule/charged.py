"""The schedule `auto` over real passes, whose costs are those that a test says: no clock decides a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ovspec.passes.pass_result import PassResult
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import StepOutcome

DRAFT, PASS = 500.0, 10_000.0


class Charged(AutoSchedule):
    """`auto`, which takes a step to have cost what the last pass of its target costs.

    Args:
        target: whose passes cost.
        cost: of a pass, in microseconds, from its rows and its result.
        most: tokens of a draft.
    """

    def __init__(
        self, target: ModelRunner, cost: Callable[[Sequence[Rows], PassResult], float], most: int
    ) -> None:
        super().__init__(most)
        self._last, self.sizes, forward = 0.0, list[int](), target.forward

        def watched(batch: Sequence[Rows]) -> PassResult:
            result = forward(batch)
            self._last = cost(batch, result)
            return result

        target.forward = watched  # type: ignore[method-assign]

    def observe(self, outcome: StepOutcome) -> None:
        """Keep how much was verified."""
        if outcome.model_tokens:
            self.sizes += [one.proposed for one in outcome.sequences]
        drafting = DRAFT if outcome.model_tokens else 0.0
        super().observe(outcome._replace(draft_duration=drafting, duration=self._last))
