"""What speculation may lose against plain decoding: by construction a share of the time, and a store."""

from __future__ import annotations

import math

from ovspec.schedule.shadow_evidence import MOST_EVIDENCE

# What a step of plain decoding pays in, as a share of itself; half as much after each of the last tries on
# evidence that failed, of which so many count.
_SHARE = 0.015
_MOST_FAILED = 2
# So many times what a failed try costs must shadow drafts have saved, and once more for each that failed; so
# many times that may it lose.
_NEEDED = 2
_RISKED = 2
# Plain steps that may lie in store from that share, and from drafting that paid.
_MOST_EARNED = 8.0
_MOST_GAINED = 64.0


class LossAllowance:
    """An account in steps of plain decoding, kept whatever is believed about acceptance.

    Plain steps pay a share of themselves in. Other steps settle what they yielded less what plain decoding
    would have yielded in their time, so that drafting which pays keeps the store full. Once it is empty there
    is plain decoding, until the store covers what one failed try costs. So by its own
    account of time a controller never loses more than that share of it, what it had gained before, and the
    two bounds; a step counts for a few times what it was expected to take at most, so that a hiccup of the
    machine is no loss.

    Where shadow drafts can tell, the store is not enough: a try needs evidence that it would have saved more
    than it costs to fail, more of it after tries that failed, and ends once it has lost twice that cost. The
    evidence is no income: it lets the store be overdrawn, which is paid back like any other loss.
    """

    def __init__(self) -> None:
        self._store = _MOST_EARNED
        self._overdraft = 0.0
        self._most = math.inf
        self._gained = 0.0
        self._failed = 0
        self._unsettled = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether there must be plain decoding."""
        return self._store < -self._overdraft or self._gained < -self._most

    def covers(self, stake: float, evidence: float | None = None) -> bool:
        """Whether drafting may begin that costs so many steps if it fails; a full store covers all.

        Args:
            stake: those steps; 0: nothing is known that could be lost.
            evidence: steps that shadow drafts say it would have saved; `None` where there can be none.
        """
        if evidence is None:
            return self._store >= min(stake, _MOST_EARNED)
        is_warranted = evidence >= min((_NEEDED + self._failed) * stake, MOST_EVIDENCE)
        return is_warranted and self._store + evidence >= min(stake, _MOST_EARNED)

    def renew(self) -> None:
        """Another prompt: tries that failed on the last one say little of it."""
        self._failed, self._unsettled = min(self._failed, 1), 0.0

    def begin(self, stake: float, evidence: float | None = None) -> None:
        """Drafting begins, with the arguments of `covers`."""
        self._overdraft = evidence or 0.0
        self._most = math.inf if evidence is None or stake <= 0.0 else _RISKED * stake
        self._gained = 0.0

    def end(self) -> None:
        """There is plain decoding again."""
        if self._gained > 0.0:
            self._failed = 0
        elif self._most < math.inf:
            self._failed = min(self._failed + 1, _MOST_FAILED)
        self._overdraft, self._most = 0.0, math.inf

    def earn(self, steps: int) -> None:
        """Take in plain steps."""
        if self._store < _MOST_EARNED:
            self._store += _SHARE * 0.5**self._failed * steps

    def settle(self, tokens: float | None, plain_steps: float) -> None:
        """Take in or out what another step yielded per sequence, against the plain steps of its time.

        One whose tokens are provisional (`None`) is settled with the commit.
        """
        self._unsettled += plain_steps
        if tokens is None:
            return
        gained, self._unsettled = tokens - self._unsettled, 0.0
        self._store = min(_MOST_GAINED, self._store + gained)
        self._gained = min(_MOST_GAINED, self._gained + gained)
