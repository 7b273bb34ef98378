"""Provisional tokens: accepted by sparse verification, not yet confirmed by a dense pass."""

from __future__ import annotations

from dataclasses import dataclass

# Smallest and largest number of provisional tokens before a commit, if the user gives no interval.
COMMIT_INTERVALS = (16, 24, 32)


@dataclass(slots=True)
class Provisional:
    """The last tokens of a sequence, which no dense pass has confirmed yet.

    Attributes:
        count: how many they are.
        interval: number of provisional tokens that triggers the next dense pass.
    """

    count: int = 0
    interval: int = COMMIT_INTERVALS[0]

    def __len__(self) -> int:
        return self.count

    def adapt(self, confirmed: int, count: int) -> None:
        """Lengthen the interval after a commit that confirmed all tokens; reset it after a correction."""
        longer = (interval for interval in COMMIT_INTERVALS if interval > self.interval)
        self.interval = next(longer, COMMIT_INTERVALS[-1]) if confirmed == count else COMMIT_INTERVALS[0]
