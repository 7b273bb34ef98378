"""What speculation may lose against plain decoding: by construction a share of the time, and a store."""

from __future__ import annotations

# What a step of plain decoding pays in, as a share of itself.
_SHARE = 0.015
# Plain steps that may lie in store from that share, and from drafting that paid.
_MOST_EARNED = 8.0
_MOST_GAINED = 64.0
# Plain steps by which shadow drafts that would have paid let the store be overdrawn.
_MOST_OVERDRAWN = 8.0


class LossAllowance:
    """An account in steps of plain decoding, kept whatever is believed about acceptance.

    Plain steps pay a share of themselves in. Other steps settle what they yielded less what plain decoding
    would have yielded in their time, so that drafting which pays keeps the store full. Once it is empty there
    is plain decoding, until the store covers what one failed try costs. So by its own
    account of time a controller never loses more than that share of it, what it had gained before, and the
    two bounds; a step counts for a few times what it was expected to take at most, so that a hiccup of the
    machine is no loss.

    Shadow drafts that would have paid are evidence, not income: they let the store be overdrawn by what they
    would have saved, and that is paid back like any other loss.
    """

    def __init__(self) -> None:
        self._store = _MOST_EARNED
        self._evidence = 0.0
        self._overdraft = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether there must be plain decoding."""
        return self._store < -self._overdraft

    def covers(self, stake: float) -> bool:
        """Whether drafting may begin that costs so many steps if it fails; a full store covers all."""
        return self._store + self._evidence >= min(stake, _MOST_EARNED)

    def renew(self) -> None:
        """Another prompt: shadow drafts of the last one say nothing of it."""
        self._evidence = 0.0

    def begin(self) -> None:
        """Drafting begins on the evidence there is."""
        self._evidence, self._overdraft = 0.0, self._evidence

    def earn(self, steps: int) -> None:
        """Take in plain steps."""
        if self._store < _MOST_EARNED:
            self._store += _SHARE * steps

    def settle(self, tokens: float, plain_steps: float) -> None:
        """Take in or out what other steps yielded per sequence, against the plain steps of their time."""
        self._store = min(_MOST_GAINED, self._store + tokens - plain_steps)

    def shadow(self, saved: float) -> None:
        """Take what a shadow draft would have saved, or lost, with the change of shapes there and back."""
        self._evidence = min(max(0.0, self._evidence + saved), _MOST_OVERDRAWN)
