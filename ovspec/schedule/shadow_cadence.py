"""When shadow drafts come: so that they take a share of the time, whatever else they take it from."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

# Share of the steps' time that shadow drafts may take; to judge them takes about as much again.
_SHARE = 0.002
# So many may come before their time.
_AHEAD = 8


class ShadowCadence:
    """Counts steps until the next shadow draft.

    Attributes:
        next: the first step that may have one.
    """

    def __init__(self) -> None:
        self.next = 0
        self._paid = 0
        self._apart = 0
        self._shares: deque[float] = deque(maxlen=_AHEAD)

    def begin(self, step: int) -> None:
        """Another prompt has one at once."""
        self.next = step

    def took(self, duration: float, step_duration: float, step: int) -> None:
        """A shadow draft took so long beside a step that took so long; `step` is the next one."""
        # One that a hiccup made slow does not put off the others.
        self._shares.append(duration / step_duration)
        self._apart = math.ceil(median(self._shares) / _SHARE)
        self._paid = max(self._paid, step) + self._apart
        self.next = self._paid

    def hasten(self, step: int) -> None:
        """The last one would have paid: have the next at once, though not many in a row."""
        if self._paid <= step + _AHEAD * self._apart:
            self.next = step
