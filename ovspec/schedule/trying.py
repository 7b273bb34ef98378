"""The price of trying: what probes may cost, and what drafting may lose against plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from ovspec.schedule.throughput import Choice

# What every step pays in for trying, as a share of itself.
SHARE = 0.015
# Plain steps that may lie in store from that share, and from drafting that paid.
STORE = 8.0
_MOST_GAINED = 64.0
# The share of probes shrinks with each that confirms what is known, down to this part of it.
_CONFIRMED = 0.85
_LEAST = 0.27
# A probe is charged at most so many times what it was expected to cost: hiccups are no loss.
_DEAREST = 3.0
# Tries on evidence that failed, of which so many count.
_MOST_FAILED = 2


@dataclass(slots=True)
class Probe:
    """Some steps of another choice than the present one, and what came of them.

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
        self.left = max(self.left - 1, tokens is None)
        self.emitted += tokens or 0


class ProbeBudget:
    """An account of time: every step pays a share in, every probe takes out what it loses."""

    def __init__(self) -> None:
        self._share, self._balance, self._wanted = SHARE, 0.0, 0.0

    def affords(self, cost: float) -> bool:
        """Whether a probe that is expected to lose `cost` may run; what is wanted is saved for."""
        self._wanted = max(cost, 0.0)
        return cost <= self._balance

    def earn(self, duration: float) -> None:
        """Take in steps that were no probe."""
        if self._balance < self._wanted:
            self._balance += self._share * duration

    def charge(self, cost: float, expected: float) -> None:
        """Take out what a probe lost; one that gained gives nothing back."""
        self._balance -= max(0.0, min(cost, _DEAREST * expected))

    def confirm(self) -> None:
        """A probe changed nothing."""
        self._share = max(_LEAST * SHARE, self._share * _CONFIRMED)

    def renew(self) -> None:
        """Something changed."""
        self._share = SHARE


class LossAllowance:
    """What drafting may lose against plain decoding, in plain steps.

    Plain steps pay a share of themselves in. Other steps settle what they yielded less what plain decoding
    would have yielded in their time, so that drafting which pays keeps the store full. Once it is empty there
    is plain decoding, until the store covers what one failed try costs. So nothing that is believed about
    acceptance can lose more than that share, what drafting had gained before, and the two bounds (the
    constraint of conservative bandits, arXiv 1602.04282).

    Where shadow drafts can tell, a try needs evidence that it would have saved twice what it costs to fail,
    and more of it after tries that failed.
    """

    def __init__(self) -> None:
        self._store, self._gained, self._unsettled = STORE, 0.0, 0.0
        self._failed, self._on_evidence = 0, False

    @property
    def is_spent(self) -> bool:
        """Whether there must be plain decoding."""
        return self._store < 0.0

    def covers(self, stake: float, evidence: float | None = None) -> bool:
        """Whether drafting may begin that costs so many steps if it fails; a full store covers all.

        Args:
            stake: those steps; 0: nothing is known that could be lost.
            evidence: steps that shadow drafts say it would have saved; `None` where there can be none.
        """
        is_warranted = evidence is None or evidence >= min((2 + self._failed) * stake, STORE)
        return is_warranted and self._store >= min(stake, STORE)

    def renew(self) -> None:
        """Another prompt: tries that failed on the last one say little of it."""
        self._failed, self._unsettled = min(self._failed, 1), 0.0

    def begin(self, on_evidence: bool) -> None:
        """Drafting begins."""
        self._gained, self._on_evidence = 0.0, on_evidence

    def end(self) -> None:
        """There is plain decoding again."""
        if self._gained > 0.0:
            self._failed = 0
        elif self._on_evidence:
            self._failed = min(self._failed + 1, _MOST_FAILED)

    def earn(self, steps: int) -> None:
        """Take in plain steps; half as much after each try that failed."""
        if self._store < STORE:
            self._store += SHARE * 0.5**self._failed * steps

    def settle(self, tokens: float | None, plain_steps: float) -> None:
        """Take in or out what another step yielded per sequence, against the plain steps of its time.

        One whose tokens are provisional (`None`) is settled with the commit.
        """
        self._unsettled += plain_steps
        if tokens is not None:
            gained, self._unsettled = tokens - self._unsettled, 0.0
            self._store = min(_MOST_GAINED, self._store + gained)
            self._gained += gained
