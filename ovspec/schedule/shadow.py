"""Shadow drafts while none is verified: when they come, and what they say that drafting would save."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as SequenceOf
from statistics import median

from ovspec.schedule.acceptance import AcceptanceModel
from ovspec.schedule.schedule import StepOutcome
from ovspec.schedule.throughput import DRAFT
from ovspec.schedule.trying import STORE

# Share of the steps' time that shadow drafts may take; to judge them takes about as much again.
_SHARE = 0.002


class ShadowWatch:
    """Adds shadow drafts up as if they were verified: the tokens that came true, less what their passes cost.

    In steps of plain decoding. The sum starts anew from zero wherever drafting would have lost, so that it
    tells when drafting begins to pay, not whether it always did (the CUSUM of Page, Biometrika 1954).

    Args:
        acceptance: learns what they would have had accepted.

    Attributes:
        saved: the sum.
        stake: what one failed try of such a draft costs, with the change of shapes there and back.
    """

    def __init__(self, acceptance: AcceptanceModel) -> None:
        self.saved = self.stake = 0.0
        self._acceptance = acceptance
        self._extra: SequenceOf[float] = ()
        self._switch = 0.0
        self._last = self._next = self._paid = self._apart = 0
        self._shares: deque[float] = deque(maxlen=2 * DRAFT)

    def begin(self, step: int) -> None:
        """Another prompt has a shadow draft at once; those of the last one say nothing of it."""
        self._next, self.saved, self._last = step, 0.0, 0

    def tokens(self, step: int) -> int:
        """Tokens that a step shall draft beside itself; 0 for most."""
        return DRAFT if step >= self._next else 0

    def price(self, extra: SequenceOf[float], switch: float, stake: float) -> None:
        """Take what is known of costs, in plain steps.

        Args:
            extra: by tokens drafted, 0 included, what a step costs more than a plain one.
            switch: what it costs more still where the step before drafted another number.
            stake: as the attribute.
        """
        self._extra, self._switch, self.stake = extra, switch, stake

    def observe(self, outcome: StepOutcome, step: int) -> bool:
        """Learn from a step, `step` being the next one; whether a shadow draft would have paid."""
        if outcome.shadow_duration:
            # One that a hiccup made slow does not put off the others.
            self._shares.append(outcome.shadow_duration / (outcome.verify_duration + outcome.host_duration))
            self._apart = math.ceil(median(self._shares) / _SHARE)
            self._next = self._paid = max(self._paid, step) + self._apart
        before = self.saved
        for proposed, accepted in outcome.shadows:
            self._acceptance.observe(DRAFT, proposed, accepted)
            self.add(proposed, accepted, len(outcome.contexts))
        if self.saved <= before:
            return False
        # Have the next one at once, though not many in a row before their time.
        if self._paid <= step + STORE * self._apart:
            self._next = step
        return True

    def add(self, proposed: int, accepted: int, sequences: int) -> None:
        """Take a draft of one of so many sequences; before `price` it says nothing."""
        if self._extra:
            # Where the drafter offers now more, now less, shapes would change as often.
            switch = self._switch if proposed != self._last else 0.0
            saved = (accepted - self._extra[proposed] - switch) / sequences
            self.saved, self._last = min(max(0.0, self.saved + saved), STORE), proposed
