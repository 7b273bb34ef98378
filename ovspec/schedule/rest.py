"""Plain steps that go by unlearned, where thinking about each would take a share of them."""

from __future__ import annotations

# Microseconds from one thought to the next, though never more than so many steps.
_THOUGHT_EVERY = 40000.0
_MOST_STEPS = 32


class Rest:
    """Counts those steps.

    Attributes:
        left: steps to come.
        gone: steps since the last that was learned from.
        duration: microseconds of those, each as long as the one before the rest.
    """

    def __init__(self) -> None:
        self.left = self.gone = 0
        self.duration = self._step = 0.0

    def begin(self, step: float, most: float) -> None:
        """Rest for a time, in steps that take so many microseconds, and for no more than `most` of them."""
        self._step = step
        self.left = max(0, int(min(_THOUGHT_EVERY / max(step, 1.0), _MOST_STEPS, most)))

    def pass_by(self) -> None:
        """A step was not learned from."""
        self.left -= 1
        self.gone += 1
        self.duration += self._step

    def end(self) -> None:
        """Think about the next step."""
        self.left = 0

    def forget(self) -> None:
        """What went by was taken into account."""
        self.gone, self.duration = 0, 0.0
