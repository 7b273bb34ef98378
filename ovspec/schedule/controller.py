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

from ovspec.schedule.acceptance import AcceptanceModel, ConfirmationRates
from ovspec.schedule.cost import KNOWN, CostCell, CostModel
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec.schedule.throughput import DRAFT, Choice, Throughput
from ovspec.schedule.trying import SHARE, STORE, LossAllowance

# Draft lengths to choose from, within the bound.
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 63)
# The first steps of a pipeline: the draft length to start from, a longer one and plain decoding in turn.
_OPENING = (DRAFT,) * 3 + (0,) * 3 + (2 * DRAFT,) * 3 + (0, 0, DRAFT, DRAFT, 0, 0)
# Steps between two looks at the choice, DRAFT times as many in plain decoding.
_LOOK_STEPS = 8
# A drafter that is behind is not asked where catching up would take this share of what is left to do.
_READ_SHARE = 0.25
# Plain steps that shadow drafts have to save before drafting begins: twice what failed tries may cost.
_EVIDENCE = 2 * STORE


class AutoSchedule(Schedule):
    """Chooses draft tokens, sparse budget and commit interval by expected tokens per second.

    Costs and acceptance are measured while it runs and kept from call to call. Plain decoding is always
    one of the choices. Now and then a few steps probe plain decoding while there are drafts, or drafts while
    there are none. An allowance bounds what all of it may lose against plain decoding.

    Args:
        max_num_assistant_tokens: longest draft it may ask for.

    Attributes:
        bound: longest draft in the present call.
    """

    def __init__(self, max_num_assistant_tokens: int) -> None:
        self.bound = max_num_assistant_tokens
        self._costs = CostModel()
        self._acceptance = AcceptanceModel(max_num_assistant_tokens)
        self._confirmations = ConfirmationRates()
        self._allowance = LossAllowance()
        self._opening = deque(_OPENING)
        # Plain steps that the last shadow drafts would have saved: the CUSUM of Page, Biometrika 1954.
        self._evidence = 0.0
        self._choice, self._plain = Choice(DRAFT, 1.0), Choice(0, 1.0)
        self._state = StepState((), (), 0)
        self._cell: CostCell | None = None
        self._expected: Throughput | None = None
        # What a probe would try, what the present one tries, and how many steps it still has.
        self._option = self._plain
        self._probe: Choice | None = None
        self._probe_steps = self._steps = self._next_look = self._collapses = 0
        self._was_plain = True
        # Microseconds since the last probe, what the drafter's unread tokens cost, and a plain step.
        self._since_probe = self._reading = self._plain_step = 0.0
        # Plain steps that skip the controller, as deciding at each costs more than it can gain.
        self._rest = 0

    @property
    def collapses(self) -> int:
        """Times since `begin` that acceptance fell below half of what it was."""
        return self._collapses

    def begin(self) -> None:
        """Let another prompt speak for itself: costs stay, acceptance counts for little."""
        self._costs.begin()
        self._allowance.begin()
        self._acceptance.begin()
        # A new prompt is given a probe at once, if the allowance covers it.
        self._probe, self._was_plain, self._since_probe, self._evidence = None, True, math.inf, 0.0
        self._next_look, self._rest, self._collapses = self._steps, 0, 0

    def plan(self, state: StepState) -> Plan:
        """The choice, or now and then a probe of another."""
        # Most plain steps go by without; those with evidence that drafting would pay look closer.
        apart = _LOOK_STEPS * (1 if self._evidence else DRAFT)
        shadow = DRAFT if state.can_shadow and self._steps % apart == 0 else 0
        if self._rest and len(state.contexts) == len(self._state.contexts):
            return Plan(0, self._plain.scale, None, shadow)
        self._rest, self._state = 0, state
        limit, scales = min(state.max_draft, self.bound), state.budget_scales
        tokens, scale = self._choice
        self._choice = Choice(min(tokens, self.bound), scale if scale in scales else scales[0])
        if self._opening and limit > 0:
            tokens = self._opening.popleft()
            # Dense steps do not go between sparse ones and their commit.
            sparse = tokens > 0 or any(state.pending)
            return self._planned(Choice(tokens, self._choice.scale if sparse else scales[-1]), limit)
        # The last drafts of a sequence are cut short; they are no reason to choose anew.
        if limit >= self._choice.tokens:
            cell = self._costs.cell(state.contexts)
            if cell is not self._cell or self._steps >= self._next_look:
                self._look(cell, limit)
            if self._probe is None and not any(state.pending):
                self._begin_probe(limit)
        return self._planned(self._probe or self._choice, limit, shadow)

    def _planned(self, choice: Choice, limit: int, shadow_tokens: int = 0) -> Plan:
        tokens = min(choice.tokens, limit)
        interval = self._expected.intervals.get(choice.scale) if self._expected else None
        return Plan(tokens, choice.scale, interval, 0 if tokens else shadow_tokens)

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
        if self._rest:
            self._rest -= 1
            self._allowance.earn(1)
            self._since_probe += self._plain_step
            return
        pace, choice = self._costs.pace, Choice.of(outcome.plan)
        self._costs.observe(outcome)
        if choice.tokens:
            drafts = zip(self._state.remaining, outcome.proposed, outcome.accepted, strict=True)
            for remaining, proposed, accepted in drafts:
                self._acceptance.observe(min(choice.tokens, remaining - 1), proposed, accepted)
        if outcome.commit_rows:
            self._confirmations.observe(choice.scale, outcome.commit_rows, outcome.confirmed)
        duration = (outcome.draft_duration + outcome.verify_duration + outcome.host_duration) / pace
        tokens = self._yielded(outcome)
        self._account(outcome, choice, tokens, duration + outcome.commit_duration / pace)
        if self._probe is None or self._expected is None:
            self._since_probe += duration
        else:
            # A probe goes on while it pays; one whose tokens are provisional goes on up to the commit.
            pays = tokens is None or tokens > duration * self._expected.rates[self._choice]
            self._probe_steps = max(self._probe_steps - 1, pays)
            if self._probe_steps <= 0:
                self._probe, self._next_look = None, self._steps
        if self._was_plain and self._probe is None and self._choice == self._plain:
            self._rest, self._plain_step = max(0, self._next_look - self._steps), duration

    def _observe_shadow(self, proposed: int, accepted: int, sequences: int) -> None:
        """Learn from a shadow draft; add what its verification would have saved to the evidence."""
        self._acceptance.observe(DRAFT, proposed, accepted)
        if self._expected is None or self._cell is None:
            return
        # Where the drafter offers now more, now less, shapes change as often.
        size, switch = sequences * proposed, self._cell.switch * (proposed < DRAFT)
        cost = self._cell.verify_at(self._plain.scale).at(size) + self._cell.draft.at(size) + switch
        saved = (accepted + 1 - cost / self._expected.costs[self._plain]) / sequences
        self._evidence = min(max(0.0, self._evidence + saved), _EVIDENCE)
        if self._evidence == _EVIDENCE:
            self._next_look, self._rest = self._steps, min(self._rest, 1)

    def _account(self, outcome: StepOutcome, choice: Choice, tokens: int | None, duration: float) -> None:
        """Compare the step with plain decoding; where the allowance is spent, go back to that."""
        followed, self._was_plain = self._was_plain, choice == self._plain
        if self._was_plain and followed:
            self._allowance.earn(1)
        elif self._expected:
            # The first plain step after drafts pays for their change of shapes.
            plain_steps = duration / self._expected.costs[self._plain]
            self._allowance.settle(None if tokens is None else tokens / len(outcome.accepted), plain_steps)
            if self._allowance.is_spent:
                self._choice = self._plain

    def _yielded(self, outcome: StepOutcome) -> int | None:
        """Tokens that stand for good after a step; `None` while they are provisional."""
        sequences, state = len(outcome.accepted), self._state
        dense = Choice.of(outcome.plan).scale == math.inf and not any(state.pending)
        if not state.commit_intervals or dense:
            return sum(outcome.accepted) + sequences
        return outcome.confirmed + sequences if outcome.commit_rows else None

    def _look(self, cell: CostCell, limit: int) -> None:
        """Take what was measured into account; choose anew where that pays."""
        if not cell.verify:
            return
        state, plain = self._state, Choice(0, self._state.budget_scales[-1])
        self._cell, self._plain = cell, plain
        before = self._acceptance.accepted_length(DRAFT)
        if self._acceptance.shift():
            self._collapses += self._acceptance.accepted_length(DRAFT) < before / 2
        candidates = self._candidates(cell, limit)
        longest = max(self._choice.tokens, *(choice.tokens for choice in candidates))
        accepted, offered = self._acceptance.rates(longest), self._acceptance.offers(longest)
        self._expected = expected = Throughput(cell, state, accepted, offered, self._confirmations)
        rates, self._reading = expected.rates, state.unread * self._costs.read_cost
        if self._reading > _READ_SHARE * sum(state.remaining) / rates[plain]:
            candidates = [choice for choice in candidates if choice.tokens == 0]
        best = max((choice for choice in candidates if self._is_covered(choice)), key=rates.__getitem__)
        needed = 1.0 + self._needed_gain(best)
        if self._choice not in candidates or rates[best] > needed * rates[self._choice]:
            self._choice, self._probe, self._evidence = best, None, 0.0
        self._next_look = self._steps + _LOOK_STEPS * (DRAFT if self._choice == plain else 1)
        others = (choice for choice in candidates if choice != plain)
        self._option = max(others, key=rates.__getitem__, default=plain) if self._choice == plain else plain

    def _candidates(self, cell: CostCell, limit: int) -> list[Choice]:
        """What may be chosen: drafts up to `limit`, no longer than twice what was measured in the cell.

        Of trees only the largest: `least_confidence` decides how much of each is verified.
        """
        found = []
        for scale in self._state.budget_scales:
            measured = max(cell.verify_at(scale).sizes, default=0) // len(self._state.contexts)
            longest = min(limit, max(DRAFT, 2 * measured))
            lengths = [n for n in _LENGTHS if n <= longest] if not self._state.trees else [0, limit]
            found += [Choice(tokens, scale) for tokens in lengths]
        return found

    def _change(self, choice: Choice) -> float:
        """Microseconds that it costs to go to a choice and back: other shapes, and what the drafter reads."""
        assert self._cell is not None
        # Where nothing is offered no shape changes.
        shapes = 2 * self._cell.switch * float(self._acceptance.offers(1)[0])
        return shapes + (self._reading if choice.tokens else 0.0)

    def _is_covered(self, choice: Choice) -> bool:
        """Whether the allowance covers one failed step of drafts, and shadow drafts, if any, ask for them."""
        assert self._expected is not None
        if self._choice != self._plain or choice == self._plain:
            return True
        costs = self._expected.costs
        stake = max(SHARE, (costs[choice] + self._change(choice)) / costs[self._plain] - 1.0)
        # A step that commits has other costs than the evidence knows.
        can_tell = self._state.can_shadow and not self._state.commit_intervals
        return self._allowance.covers(stake) and (self._evidence == _EVIDENCE or not can_tell)

    def _needed_gain(self, best: Choice) -> float:
        """How much better, as a share, the best choice must promise to be than the present one."""
        assert self._expected is not None
        if self._choice != self._plain or best == self._plain:
            return SHARE
        # What was seen in so many drafts may last for as many more, in which the change must pay.
        return SHARE + self._change(best) / (max(self._acceptance.drafts, 1.0) * self._expected.costs[best])

    def _begin_probe(self, limit: int) -> None:
        """Probe plain decoding or drafts, if its cost is a small share of the time since the last one."""
        option = self._option
        if option == self._choice or option.tokens > limit or self._expected is None:
            return
        rates = self._expected.rates
        lost = KNOWN * self._expected.costs[option] * (1.0 - rates[option] / rates[self._choice])
        if lost + self._change(option) <= SHARE * self._since_probe and self._is_covered(option):
            self._probe, self._probe_steps, self._since_probe = option, KNOWN, 0.0
