"""What probing may cost: a share of the time, the smaller the less it finds."""

from __future__ import annotations

# The share shrinks with each probe that confirms what is known, so probes come ever more rarely, and is
# whole again as soon as something changes.
_SHARE = 0.015
_LEAST_SHARE = 0.004
_CONFIRMED = 0.85
# A probe is charged at most so many times what it was expected to cost: first passes of a shape are slow.
_DEAREST = 3.0


class ExplorationBudget:
    """An account of time: every step pays a share in, every probe takes out what it loses."""

    def __init__(self) -> None:
        self._share = _SHARE
        self._balance = 0.0
        self._wanted = 0.0

    def affords(self, cost: float) -> bool:
        """Whether a probe that is expected to lose `cost` may run; what is wanted is saved for."""
        self._wanted = max(cost, 0.0)
        return cost <= self._balance

    def earn(self, duration: float) -> None:
        """Take in a step that was no probe."""
        if self._balance < self._wanted:
            self._balance += self._share * duration

    def charge(self, cost: float, expected: float) -> None:
        """Take out what a probe lost; one that gained gives nothing back."""
        self._balance -= max(0.0, min(cost, _DEAREST * expected))

    def confirm(self) -> None:
        """A probe changed nothing."""
        self._share = max(_LEAST_SHARE, self._share * _CONFIRMED)

    def renew(self) -> None:
        """Something changed."""
        self._share = _SHARE
