"""The price of trying: what drafting may lose against plain decoding."""

from __future__ import annotations

# What may be lost, as a share of the time; a probe of another choice may cost so much of the time before it.
SHARE = 0.015
# Plain steps that may lie in store from that share, and from drafting that paid.
STORE = 8.0
_MOST_GAINED = 64.0


class LossAllowance:
    """What drafting may lose against plain decoding, in plain steps.

    Plain steps pay a share of themselves in. Other steps settle what they yielded less what plain decoding
    would have yielded in their time, so that drafting which pays keeps the store full. Once it is empty there
    is plain decoding, until the store covers what one failed try costs. So nothing that is believed about
    acceptance can lose more than that share, what drafting had gained before, and the two bounds (the
    constraint of conservative bandits, arXiv 1602.04282).
    """

    def __init__(self) -> None:
        self._store, self._unsettled = STORE, 0.0

    def covers(self, stake: float) -> bool:
        """Whether there may be drafts that cost so many steps if they fail; a full store covers all."""
        return self._store >= min(stake, STORE)

    def begin(self) -> None:
        """Another prompt: what was not settled is not carried over."""
        self._unsettled = 0.0

    def earn(self) -> None:
        """Take in the share of a plain step."""
        if self._store < STORE:
            self._store += SHARE

    def settle(self, tokens: float | None, plain_steps: float) -> None:
        """Take in or out what another step yielded per sequence, against the plain steps of its time.

        One whose tokens are provisional (`None`) is settled with the commit.
        """
        self._unsettled += plain_steps
        if tokens is not None:
            self._store = min(_MOST_GAINED, self._store + tokens - self._unsettled)
            self._unsettled = 0.0
