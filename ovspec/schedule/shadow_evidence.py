"""What shadow drafts say that drafting would save."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

# Plain steps that it may come to.
MOST_EVIDENCE = 8.0


class ShadowEvidence:
    """Adds shadow drafts up as if they were verified: the tokens that came true, less what their passes cost.

    In steps of plain decoding. The sum starts anew from zero wherever drafting would have lost, so that it
    tells when drafting begins to pay, not whether it always did (the CUSUM of Page, Biometrika 1954).

    Attributes:
        saved: the sum.
        stake: what one failed try of such a draft costs, with the change of shapes there and back.
    """

    def __init__(self) -> None:
        self.saved = 0.0
        self.stake = 0.0
        self._extra: SequenceOf[float] = ()
        self._switch = 0.0
        self._last = 0

    def renew(self) -> None:
        """Another prompt: shadow drafts of the last one say nothing of it."""
        self.saved, self._last = 0.0, 0

    def price(self, extra: SequenceOf[float], switch: float, stake: float) -> None:
        """Take what is known of costs, in plain steps.

        Args:
            extra: by tokens drafted, 0 included, what a step costs more than a plain one.
            switch: what it costs more still where the step before drafted another number.
            stake: as the attribute.
        """
        self._extra, self._switch, self.stake = extra, switch, stake

    def add(self, proposed: int, accepted: int, sequences: int) -> None:
        """Take a draft of one of so many sequences; before `price` it says nothing."""
        if not self._extra:
            return
        saved = accepted - self._extra[proposed]
        if proposed != self._last:
            # Where the drafter offers now more, now less, shapes would change as often.
            saved -= self._switch
        self._last = proposed
        self.saved = min(max(0.0, self.saved + saved / sequences), MOST_EVIDENCE)
