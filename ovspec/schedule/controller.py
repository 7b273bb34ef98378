"""The schedule `auto`: the choice of most expected tokens per second, and a bounded price for trying others.

A bandit whose arms share one model (BanditSpec, arXiv 2505.15141, has an arm per setting): acceptance per
position and cost per number of rows say what each number of draft tokens would yield, as in TurboSpec
(arXiv 2406.14066); EVICT (arXiv 2605.00342) weighs the nodes of a tree against the same cost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as SequenceOf

import numpy as np

from ovspec.schedule.acceptance import WINDOW, AcceptanceModel, ConfirmationRates
from ovspec.schedule.cost import KNOWN, CostCell, CostModel
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec.schedule.throughput import Choice, Throughput
from ovspec.schedule.trying import SHARE, STORE, LossAllowance

# The draft length to start from, and those to choose from within the bound.
_DRAFT = 4
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 63)
# The first steps of a pipeline: drafts of that length, plain decoding and a longer draft until their
# costs are known, then changes between them.
_OPENING = (_DRAFT,) * KNOWN + (0,) * KNOWN + (2 * _DRAFT,) * KNOWN + (0, 0, _DRAFT, _DRAFT, 0, 0)
# A drafter that is behind is not asked where catching up would take this share of what is left to do.
_READ_SHARE = 0.25
# Plain steps that shadow drafts have to save before drafting begins: twice what failed tries may cost.
_EVIDENCE = 2 * STORE


class AutoSchedule(Schedule):
    """Chooses draft tokens, sparse budget and commit interval by expected tokens per second.

    Costs and acceptance are measured while it runs and kept from call to call. Now and then a few steps probe
    plain decoding while there are drafts, or drafts while there are none.

    Args:
        max_num_assistant_tokens: longest draft it may ask for.

    Attributes:
        collapses: times since `begin` that acceptance fell below half of what it was.
    """

    def __init__(self, max_num_assistant_tokens: int) -> None:
        self._most, self._costs = max_num_assistant_tokens, CostModel()
        self._acceptance = AcceptanceModel(max_num_assistant_tokens)
        self._confirmations = ConfirmationRates()
        self._allowance = LossAllowance()
        self._opening = deque(_OPENING)
        # Plain steps that the last shadow drafts would have saved: the CUSUM of Page, Biometrika 1954.
        self._evidence = 0.0
        self._state = StepState((), (), 0)
        self._expected: Throughput | None = None
        self._choice, self._plain = Choice(_DRAFT, 1.0), Choice(0, 1.0)
        # What a probe would try, what the present one tries, and how many steps it still has.
        self._option = self._plain
        self._probe: Choice | None = None
        self._probe_steps = self._steps = self._next_look = 0
        # The step that was planned last; several plain ones may follow from one plan.
        self._planned = -1
        self._was_plain = True
        # Plain steps rest: they skip the controller, as deciding at each costs more than it can gain.
        self._rests = False
        # Microseconds since the last probe, of reading what the drafter has not read, and of the last step.
        self._since_probe = self._reading = self._last_step = 0.0

    def begin(self) -> None:
        """Let another prompt speak for itself: costs stay, acceptance counts for little."""
        self._costs.begin()
        self._allowance.begin()
        self._acceptance.begin()
        # A new prompt is given a probe at once, if the allowance covers it.
        self._probe, self._was_plain, self._since_probe, self._evidence = None, True, math.inf, 0.0
        self._next_look, self.collapses = self._steps, 0

    def plan(self, state: StepState) -> Plan:
        """The choice, or now and then a probe of another."""
        # A shadow draft every 32 plain steps, every 8 where there is evidence that drafting would pay.
        apart = WINDOW * (1 if self._evidence else _DRAFT)
        is_due = self._steps // apart > self._planned // apart
        shadow, self._planned = _DRAFT if state.can_shadow and is_due else 0, self._steps
        self._rests = (
            self._rests and self._steps < self._next_look and len(state.contexts) == len(self._state.contexts)
        )
        if self._rests:
            return Plan(0, self._plain.scale, None, shadow)
        self._state = state
        asked, scales, (tokens, scale) = min(state.asked, self._most), state.budget_scales, self._choice
        limit = min(state.max_draft, asked)
        self._choice = Choice(min(tokens, asked), scale if scale in scales else scales[0])
        if self._opening and limit > 0:
            tokens, shadow = self._opening.popleft(), 0
            # Dense steps do not go between sparse ones and their commit.
            scale = self._choice.scale if tokens or any(state.pending) else scales[-1]
        else:
            # The last drafts of a sequence are cut short; they are no reason to choose anew.
            if limit >= self._choice.tokens:
                self._look(self._costs.cell(state.contexts), limit)
                if self._probe is None and not any(state.pending):
                    self._begin_probe(limit)
            tokens, scale = self._probe or self._choice
        tokens = min(tokens, limit)
        interval = self._expected.intervals.get(scale) if self._expected else None
        return Plan(tokens, scale, interval, 0 if tokens else shadow)

    def least_confidence(self, confidences: SequenceOf[float]) -> float:
        """Keep the nodes up to the most expected tokens per second: EVICT's rule for trees."""
        likely, cell = np.sort(confidences)[::-1], self._costs.cell(self._state.contexts)
        sizes = np.arange(len(likely) + 1)
        tokens = len(self._state.contexts) + np.concatenate([[0.0], np.cumsum(likely)])
        verify = cell.verify_at((self._probe or self._choice).scale)
        cost = cell.draft.at(len(likely)) + verify.predict(sizes)
        if not cost[0]:
            return 0.0
        best = int(np.argmax(tokens / cost))
        return float(likely[best - 1]) if best else math.inf

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from what the step cost and yielded."""
        self._steps += 1
        for proposed, accepted in outcome.shadows:
            self._observe_shadow(proposed, accepted, len(outcome.contexts))
        if self._rests:
            self._allowance.earn()
            self._since_probe += self._last_step
            return
        pace = self._costs.pace
        choice = Choice(outcome.plan.num_assistant_tokens, outcome.plan.budget_scale or 1.0)
        self._costs.observe(outcome)
        if choice.tokens:
            drafts = zip(self._state.remaining, outcome.proposed, outcome.accepted, strict=True)
            for remaining, proposed, accepted in drafts:
                self._acceptance.observe(min(choice.tokens, remaining - 1), proposed, accepted)
        if outcome.commit_rows:
            self._confirmations.observe(choice.scale, outcome.commit_rows, outcome.confirmed)
        duration = self._last_step = (outcome.draft_duration + outcome.duration) / pace
        tokens = self._yielded(outcome, choice)
        self._account(outcome, choice, tokens, duration + outcome.commit_duration / pace)
        if self._probe is None or self._expected is None:
            self._since_probe += duration
        else:
            # A probe goes on while it pays; one whose tokens are provisional goes on up to the commit.
            pays = tokens is None or tokens > duration * self._expected.rate(self._choice)
            self._probe_steps = max(self._probe_steps - 1, pays)
            if self._probe_steps <= 0:
                self._probe, self._next_look = None, self._steps
        self._rests = self._was_plain and self._probe is None and self._choice == self._plain

    def _observe_shadow(self, proposed: int, accepted: int, sequences: int) -> None:
        """Learn from a shadow draft; add what its verification would have saved to the evidence."""
        self._acceptance.observe(_DRAFT, proposed, accepted)
        if self._expected is None:
            return
        cell, size = self._expected.cell, sequences * proposed
        # Where the drafter offers now more, now less, shapes change as often.
        switch = cell.switch * (proposed < _DRAFT)
        cost = cell.verify_at(self._plain.scale).at(size) + cell.draft.at(size) + switch
        saved = (accepted + 1 - cost / self._expected.cost(self._plain)) / sequences
        self._evidence = min(max(0.0, self._evidence + saved), _EVIDENCE)
        if self._evidence == _EVIDENCE:
            self._next_look = self._steps

    def _account(self, outcome: StepOutcome, choice: Choice, tokens: int | None, duration: float) -> None:
        """Compare the step with plain decoding; where the allowance is spent, go back to that."""
        followed, self._was_plain = self._was_plain, choice == self._plain
        if self._was_plain and followed:
            self._allowance.earn()
        elif self._expected:
            # The first plain step after drafts pays for their change of shapes.
            plain_steps = duration / self._expected.cost(self._plain)
            self._allowance.settle(None if tokens is None else tokens / len(outcome.accepted), plain_steps)
            if not self._allowance.covers(0.0):
                self._choice = self._plain

    def _yielded(self, outcome: StepOutcome, choice: Choice) -> int | None:
        """Tokens that stand for good after a step; `None` while they are provisional."""
        sequences, state = len(outcome.accepted), self._state
        if not state.commit_intervals or (choice.scale == math.inf and not any(state.pending)):
            return sum(outcome.accepted) + sequences
        return outcome.confirmed + sequences if outcome.commit_rows else None

    def _look(self, cell: CostCell, limit: int) -> None:
        """Take what was measured into account; choose anew where that pays."""
        is_new = self._expected is None or self._expected.cell is not cell
        if not cell.verify or not (is_new or self._steps >= self._next_look):
            return
        state, plain = self._state, Choice(0, self._state.budget_scales[-1])
        self._plain = plain
        before = self._acceptance.accepted_length(_DRAFT)
        if self._acceptance.shift():
            self.collapses += self._acceptance.accepted_length(_DRAFT) < before / 2
        candidates = self._candidates(cell, limit)
        longest = max(self._choice.tokens, *(choice.tokens for choice in candidates))
        expected = Throughput(cell, state, self._acceptance, self._confirmations, longest)
        self._expected, rate, self._reading = expected, expected.rate, state.unread * self._costs.read_cost
        if self._reading > _READ_SHARE * sum(state.remaining) / rate(plain):
            candidates = [choice for choice in candidates if choice.tokens == 0]
        best = max((choice for choice in candidates if self._is_covered(expected, choice)), key=rate)
        gain = SHARE
        if self._choice == plain != best:
            # What was seen in so many drafts may last for as many more, in which the change must pay.
            drafts = max(self._acceptance.accepted.tried[0], 1.0)
            gain += self._change(cell, best) / (drafts * expected.cost(best))
        if self._choice not in candidates or rate(best) > (1.0 + gain) * rate(self._choice):
            self._choice, self._probe, self._evidence = best, None, 0.0
        is_plain = self._choice == plain
        others = (choice for choice in candidates if is_plain and choice != plain)
        self._option = max(others, key=rate, default=plain)
        self._next_look = self._steps + WINDOW * (_DRAFT if is_plain else 1)

    def _candidates(self, cell: CostCell, limit: int) -> list[Choice]:
        """What may be chosen: drafts up to `limit`, no longer than twice what was measured in the cell.

        Of trees only the largest: `least_confidence` decides how much of each is verified.
        """
        found = []
        for scale in self._state.budget_scales:
            measured = max(cell.verify_at(scale).sizes, default=0) // len(self._state.contexts)
            longest = min(limit, max(_DRAFT, 2 * measured))
            lengths = [n for n in _LENGTHS if n <= longest] if not self._state.trees else [0, limit]
            found += [Choice(tokens, scale) for tokens in lengths]
        return found

    def _change(self, cell: CostCell, choice: Choice) -> float:
        """Microseconds that it costs to go to a choice and back: other shapes, and what the drafter reads."""
        # Where nothing is offered no shape changes.
        shapes = 2 * cell.switch * self._acceptance.offered.means(1)[0]
        return shapes + (self._reading if choice.tokens else 0.0)

    def _is_covered(self, expected: Throughput, choice: Choice) -> bool:
        """Whether the allowance covers one failed step of drafts, and shadow drafts, if any, ask for them."""
        if self._choice != self._plain or choice == self._plain:
            return True
        failed = expected.cost(choice) + self._change(expected.cell, choice)
        stake = max(SHARE, failed / expected.cost(self._plain) - 1.0)
        # A step that commits has other costs than the evidence knows.
        can_tell = self._state.can_shadow and not self._state.commit_intervals
        return self._allowance.covers(stake) and (self._evidence == _EVIDENCE or not can_tell)

    def _begin_probe(self, limit: int) -> None:
        """Probe plain decoding or drafts, if its cost is a small share of the time since the last one."""
        option, expected = self._option, self._expected
        if expected is None or option == self._choice or option.tokens > limit:
            return
        lost = KNOWN * expected.cost(option) * (1.0 - expected.rate(option) / expected.rate(self._choice))
        cost = lost + self._change(expected.cell, option)
        if cost <= SHARE * self._since_probe and self._is_covered(expected, option):
            self._probe, self._probe_steps, self._since_probe = option, KNOWN, 0.0
