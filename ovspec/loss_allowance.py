"""What speculation may have lost against plain decoding: by construction no more than a share of the time."""

from __future__ import annotations

# What a step of plain decoding pays in, as a share of itself.
_SHARE = 0.015
# Tokens of plain decoding that may lie in store, from that share and from drafting that paid: so much a collapse
# may cost before drafting is given up.
_MOST_EARNED = 8.0
_MOST_GAINED = 64.0


class LossAllowance:
    """An account in tokens of plain decoding, kept whatever is believed about costs and acceptance.

    Plain steps pay a share of themselves in. Other steps settle what they yielded less what plain decoding
    would have yielded in their time, so that drafting which pays keeps the store full. Once it is empty there
    is plain decoding, until the store covers what one failed try costs. So however wrong a controller is, all
    that it ever loses is that share of the time and one store. Shadow drafts that would have paid count as
    if they had: once, and only while no other says the contrary.
    """

    def __init__(self) -> None:
        self._store = _MOST_EARNED
        self._shadow = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether there must be plain decoding."""
        return self._store < 0.0

    def covers(self, stake: float) -> bool:
        """Whether drafting may begin that costs so many tokens if it fails; a full store covers all."""
        return self._store + self._shadow >= min(stake, _MOST_EARNED)

    def renew(self) -> None:
        """Another prompt: what was gained before is not staked on it, nor are its losses held against it."""
        pass
        self._shadow = 0.0

    def begin(self) -> None:
        """Drafting begins: what shadow drafts would have saved is spent."""
        self._store = min(_MOST_GAINED, self._store + self._shadow)
        self._shadow = 0.0

    def earn(self, tokens: float) -> None:
        """Take in a plain step of so many tokens."""
        if self._store < _MOST_EARNED:
            self._store += _SHARE * tokens

    def settle(self, tokens: float, plain_tokens: float) -> None:
        """Take in or out what another step yielded, against plain decoding in the same time."""
        self._store = min(_MOST_GAINED, self._store + tokens - plain_tokens)

    def shadow(self, saved: float) -> None:
        """Take what a shadow draft would have saved, or lost, with the change of shapes there and back."""
        self._shadow = max(0.0, self._shadow + saved)
