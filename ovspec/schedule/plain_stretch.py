"""Plain decoding between drafts: when it is thought about, what it waits for, and the pace it ends at."""

from __future__ import annotations

from ovspec.schedule.choice import Choice
from ovspec.schedule.rest import Rest

# Steps after the last plain one for which the machine is taken to be no slower than it was then.
_PACE_HOLDS = 64


class PlainStretch:
    """Follows the plain steps of a schedule, up to the drafts that end them.

    Attributes:
        goes_on: whether the last step that was learned from was a plain one.
        rest: its steps that go by unlearned.
        awaited: the choice that would be better, once the allowance covers it; `None` where there is none.
    """

    def __init__(self) -> None:
        self.goes_on = True
        self.rest = Rest()
        self.awaited: Choice | None = None
        self._ended = 0, 1.0

    def begin(self) -> None:
        """Another prompt; its first pass is no change of shapes."""
        self.goes_on, self.rest = True, Rest()

    def take(self, is_plain: bool) -> int:
        """Take a step that was learned from.

        Returns:
            Plain steps since the last that was learned from, itself included; 0 where it or that one drafted.
        """
        followed, self.goes_on = self.goes_on, is_plain
        return 1 + self.rest.gone if followed and is_plain else 0

    def end(self, step: int, pace: float) -> None:
        """Drafting begins behind so many steps, at the pace of `CostModel`."""
        self._ended = step + _PACE_HOLDS, pace

    def slowdown(self, step: int, pace: float) -> float:
        """How many times slower steps are than at its end; 1.0 at least, and some time after it.

        Passes that are slower than was known look like a slower machine, until plain steps say otherwise.
        """
        until, before = self._ended
        return max(1.0, pace / before) if until > step else 1.0
