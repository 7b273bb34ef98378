"""Shadow drafts while none is verified: when they come, and what they teach."""

from __future__ import annotations

import numpy as np

from ovspec.schedule.acceptance_model import AcceptanceModel
from ovspec.schedule.choice import Choice
from ovspec.schedule.cost_model import CostCell
from ovspec.schedule.expectations import Expectations
from ovspec.schedule.schedule import StepOutcome
from ovspec.schedule.shadow_cadence import ShadowCadence
from ovspec.schedule.shadow_evidence import ShadowEvidence

SHADOW_TOKENS = 4


class ShadowWatch:
    """Follows them for a schedule.

    Args:
        acceptance: learns what they would have had accepted.

    Attributes:
        evidence: what they would have saved.
    """

    def __init__(self, acceptance: AcceptanceModel) -> None:
        self.evidence = ShadowEvidence()
        self._acceptance = acceptance
        self._cadence = ShadowCadence()

    def begin(self, step: int) -> None:
        """Another prompt."""
        self._cadence.begin(step)
        self.evidence.renew()

    def tokens(self, step: int) -> int:
        """Tokens that a step shall draft beside itself; 0 for most."""
        return SHADOW_TOKENS if step >= self._cadence.next else 0

    def price(self, cell: CostCell, expected: Expectations, plain: Choice, sequences: int) -> None:
        """Take what is known of costs."""
        if not expected.knows(plain):
            return
        cost = expected.cost(plain)
        steps = cell.steps_of(plain.scale, sequences * np.arange(SHADOW_TOKENS + 1)) / cost
        stake = expected.stake(Choice(SHADOW_TOKENS, plain.scale), plain, 2 * cell.switch)
        self.evidence.price((steps - 1.0).tolist(), cell.switch / cost, stake)

    def observe(self, outcome: StepOutcome, step: int) -> bool:
        """Learn from a step, `step` being the next one; whether one would have paid."""
        if outcome.shadow_duration:
            beside = outcome.verify_duration + outcome.host_duration
            self._cadence.took(outcome.shadow_duration, beside, step)
        before = self.evidence.saved
        for proposed, accepted in outcome.shadows:
            self._acceptance.observe(SHADOW_TOKENS, proposed, accepted)
            self.evidence.add(proposed, accepted, len(outcome.contexts))
        if self.evidence.saved <= before:
            return False
        self._cadence.hasten(step)
        return True
