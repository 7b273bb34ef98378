"""A probe: some steps of another choice than the present one."""

from __future__ import annotations

from dataclasses import dataclass

from ovspec.schedule.choice import Choice


@dataclass(slots=True)
class Probe:
    """What is tried, and what came of it so far.

    Attributes:
        choice: what is tried.
        left: steps that it still has.
        cost: microseconds that it was expected to lose.
        steps: it has taken.
        emitted: tokens that stand for good.
        duration: microseconds that the steps took, at the usual pace.
    """

    choice: Choice
    left: int
    cost: float
    steps: int = 0
    emitted: int = 0
    duration: float = 0.0

    def add(self, tokens: int | None, duration: float) -> None:
        """Take a step; one whose tokens are provisional (`None`) is followed by another, up to the commit."""
        self.duration += duration
        self.steps += 1
        self.left -= 1
        if tokens is None:
            self.go_on()
        else:
            self.emitted += tokens

    def go_on(self) -> None:
        """Take one more step at least."""
        self.left = max(self.left, 1)

    def lost(self, rate: float) -> float:
        """Microseconds lost against a choice that emits tokens at a rate; what was gained is negative."""
        return self.duration - self.emitted / rate
