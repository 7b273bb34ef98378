"""The schedule `auto`: the choice of most expected tokens per second, and a bounded price for trying others.

A bandit whose arms share one model (BanditSpec, arXiv 2505.15141, has an arm per setting): acceptance per
position and cost per number of rows say what each number of draft tokens would yield, as in TurboSpec
(arXiv 2406.14066); EVICT (arXiv 2605.00342) weighs the nodes of a tree against the same cost.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from ovspec.schedule.acceptance import AcceptanceModel, ConfirmationRates
from ovspec.schedule.cost import KNOWN, OFTEN, CostCell, CostModel
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec.schedule.shadow import ShadowWatch
from ovspec.schedule.throughput import DRAFT, Choice, Throughput
from ovspec.schedule.trying import LossAllowance, Probe, ProbeBudget

# Draft lengths to choose from, within the bound.
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 63)
# The first steps of a pipeline: the draft length to start from, a longer one and plain decoding in turn.
_OPENING = (DRAFT,) * 3 + (0,) * 3 + (2 * DRAFT,) * 3 + (0, 0, DRAFT, DRAFT, 0, 0)
# Steps between two looks at the choice while it changes, and when it has not for long.
_LOOK_STEPS = 4
_MOST_LOOK_STEPS = 16
# Another choice must promise this much more, and so much more still when it was never tried here; what is
# hardly known may turn out that much better too, another sparse budget more so.
_GAIN = 0.01
_HOPE = 0.05
_HOPE_OF_SCALE = 0.2
# Drafts that acceptance seen in earlier calls may weigh in the next.
_CARRIED_DRAFTS = 8.0
# A step of drafting is held to take at most so many times what it was expected to: hiccups are no loss.
_DEAREST = 2.0
# A drafter that is behind is not asked when catching up would take this share of what is left to do.
_READ_SHARE = 0.25
# Where shadow drafts tell acceptance, drafts of known cost are verified again after so many steps only.
_REMEASURE_STEPS = 1024
# Plain steps skip the controller for so many microseconds: deciding at each costs more than it can gain.
_REST = 40000.0
_MOST_REST = 32


class AutoSchedule(Schedule):
    """Chooses draft tokens, sparse budget and commit interval by expected tokens per second.

    Costs and acceptance are measured while it runs and kept from call to call. Plain decoding is always
    one of the choices. What is not chosen is probed a few steps at a time, on a budget of time. Where shadow
    drafts tell what would be accepted, only unknown costs are probed. An allowance bounds what all of it may
    lose against plain decoding.

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
        self._shadow = ShadowWatch(self._acceptance)
        self._budget = ProbeBudget()
        self._allowance = LossAllowance()
        self._opening = deque(_OPENING)
        self._choice, self._plain = Choice(DRAFT, 1.0), Choice(0, 1.0)
        self._state = StepState((), (), 0)
        self._expected: Throughput | None = None
        self._cell: CostCell | None = None
        self._options: list[Choice] = []
        self._probe: Probe | None = None
        self._was_probed = False
        self._last_probed: dict[Choice, int] = {}
        self._steps = self._next_look = self._next_probe = self._last_drafted = 0
        self._patience = _LOOK_STEPS
        self._news, self._was_plain = True, True
        self._rest = self._rested = 0
        self._reading = self._rest_cost = 0.0
        self._is_new = True
        self._collapses = 0

    @property
    def collapses(self) -> int:
        """Times since `begin` that acceptance fell below half of what it was."""
        return self._collapses

    def begin(self) -> None:
        """Let another prompt speak for itself: costs stay, acceptance counts for little."""
        self._costs.begin()
        self._shadow.begin(self._steps)
        self._allowance.renew()
        self._acceptance.weaken(_CARRIED_DRAFTS)
        self._settle(renewed=True)
        self._probe, self._is_new = None, True
        self._next_look, self._news, self._was_plain = self._steps, True, True
        self._next_probe = self._steps
        self._rest = self._rested = self._collapses = 0

    def plan(self, state: StepState) -> Plan:
        """The choice, or now and then a probe of another."""
        shadow = self._shadow.tokens(self._steps) if state.can_shadow else 0
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
            if cell is not self._cell or (self._news and self._steps >= self._next_look):
                self._look(cell, limit)
            if self._probe is None and not any(state.pending) and self._steps >= self._next_probe:
                self._begin_probe(cell, limit)
        return self._planned(self._probe.choice if self._probe else self._choice, limit, shadow)

    def _planned(self, choice: Choice, limit: int, shadow_tokens: int = 0) -> Plan:
        tokens = min(choice.tokens, limit)
        interval = self._expected.intervals.get(choice.scale) if self._expected else None
        return Plan(tokens, choice.scale, interval, 0 if tokens else shadow_tokens)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from what the step cost and yielded."""
        self._steps += 1
        if self._rest:
            self._rest, self._rested = self._rest - 1, self._rested + 1
            self._budget.earn(self._rest_cost)
            self._observe_shadows(outcome)
            return
        pace, choice = self._costs.pace, Choice.of(outcome.plan)
        self._costs.observe(outcome)
        if choice.tokens:
            self._news, self._last_drafted = True, self._steps
            drafts = zip(self._state.remaining, outcome.proposed, outcome.accepted, strict=True)
            for remaining, proposed, accepted in drafts:
                self._acceptance.observe(min(choice.tokens, remaining - 1), proposed, accepted)
        if outcome.commit_rows:
            self._confirmations.observe(choice.scale, outcome.commit_rows, outcome.confirmed)
        self._observe_shadows(outcome)
        spent = (outcome.draft_duration + outcome.verify_duration + outcome.host_duration) / pace
        duration = spent + outcome.commit_duration / pace
        self._account(outcome, choice, duration)
        if self._probe is None:
            self._budget.earn(spent)
        else:
            self._follow_probe(self._probe, outcome, duration)
        self._rested = 0
        stays_plain = self._was_plain and self._probe is None and self._choice == self._plain
        if stays_plain and not self._state.commit_intervals:
            most = self._next_look - self._steps if self._news else math.inf
            self._rest, self._rest_cost = max(0, int(min(_REST / max(spent, 1.0), _MOST_REST, most))), spent

    def _account(self, outcome: StepOutcome, choice: Choice, duration: float) -> None:
        """Compare the step with plain decoding; where the allowance is spent, go back to that."""
        followed, self._was_plain = self._was_plain, choice == self._plain
        if self._was_plain and followed:
            self._allowance.earn(1 + self._rested)
            self._news |= self._next_look <= self._steps
        elif self._expected and (plain := self._expected.cost(self._plain)):
            # The first plain step after drafts pays for their change of shapes.
            switch = self._costs.cell(outcome.contexts).switch
            cost = self._expected.cost(choice) + switch + outcome.commit_duration / self._costs.pace
            tokens = self._yielded(outcome)
            yielded = None if tokens is None else tokens / len(outcome.accepted)
            self._allowance.settle(yielded, min(duration, _DEAREST * cost) / plain)
            if self._allowance.is_spent and self._choice != self._plain:
                self._news = True
                self._choose(self._plain)

    def _yielded(self, outcome: StepOutcome) -> int | None:
        """Tokens that stand for good after a step; `None` while they are provisional."""
        sequences, state = len(outcome.accepted), self._state
        dense = Choice.of(outcome.plan).scale == math.inf and not any(state.pending)
        if not state.commit_intervals or dense:
            return sum(outcome.accepted) + sequences
        return outcome.confirmed + sequences if outcome.commit_rows else None

    def _follow_probe(self, probe: Probe, outcome: StepOutcome, duration: float) -> None:
        assert self._expected is not None
        tokens, rate = self._yielded(outcome), self._expected.rates[self._choice]
        probe.add(tokens, duration)
        pays = tokens is not None and not outcome.commit_rows and tokens > duration * rate
        if self._choice.tokens == 0 and pays and probe.steps < 2 * DRAFT:
            probe.left = max(probe.left, 1)
        if probe.left <= 0:
            lost = probe.duration - probe.emitted / rate
            self._budget.charge(lost, probe.cost)
            # Drafting that paid is followed up at once: it may be that it pays again.
            self._next_probe = self._steps + (1 if lost < 0.0 else _LOOK_STEPS)
            self._next_look = self._steps
            self._probe, self._was_probed = None, True
            if self._choice == self._plain:
                self._allowance.end()

    def _observe_shadows(self, outcome: StepOutcome) -> None:
        # What would have failed is no reason to begin; what would have paid may be one at once.
        pays = self._shadow.observe(outcome, self._steps)
        if pays and self._allowance.covers(self._shadow.stake, self._shadow.saved):
            self._next_look, self._news, self._rest = self._steps, True, 0

    def _look(self, cell: CostCell, limit: int) -> None:
        """Take what was measured into account; choose anew where that pays."""
        state, plain = self._state, Choice(0, self._state.budget_scales[-1])
        self._cell, self._news, self._plain = cell, False, plain
        changed = self._notice_shift()
        open_ = self._candidates(cell, limit)
        longest = max(self._choice.tokens, *(choice.tokens for choice in open_))
        accepted, offered = self._acceptance.rates(longest), self._acceptance.offers(longest)
        expected = Throughput(cell, state, accepted, offered, self._confirmations)
        self._expected, rates = expected, expected.rates
        self._reading = state.unread * self._costs.read_cost
        if self._reading > _READ_SHARE * sum(state.remaining) / rates[plain]:
            open_ = [choice for choice in open_ if choice.tokens == 0]
        covered = [choice for choice in open_ if self._choice != plain or self._is_covered(choice)]
        best = max(covered, key=rates.__getitem__)
        if self._choice not in open_ or rates[best] > (1.0 + self._needed_gain(best)) * rates[self._choice]:
            self._choose(best)
            changed = True
        if state.can_shadow and (cost := expected.cost(plain)):
            sizes = len(state.contexts) * np.arange(DRAFT + 1)
            steps = cell.verify_at(plain.scale).predict(sizes) + cell.draft.predict(sizes)
            stake = self._stake(Choice(DRAFT, plain.scale))
            self._shadow.price((steps / cost - 1.0).tolist(), cell.switch / cost, stake)
        self._settle(changed)
        self._next_look = self._steps + self._patience
        hopeful = [choice for choice in open_ if self._hopeful(cell, choice)]
        self._options = [
            *([plain] if self._choice != plain else []),
            *sorted(hopeful, key=rates.__getitem__)[-1:],
        ]

    def _candidates(self, cell: CostCell, limit: int) -> list[Choice]:
        """What may be chosen: drafts up to `limit`, no longer than twice what was measured in the cell."""
        found = []
        for scale in self._state.budget_scales:
            measured = max(cell.verify_at(scale).sizes, default=0) // len(self._state.contexts)
            longest = min(limit, max(DRAFT, 2 * measured))
            found += [Choice(tokens, scale) for tokens in _LENGTHS if tokens <= longest]
        return found

    def _choose(self, choice: Choice) -> None:
        if self._choice == self._plain:
            self._allowance.begin(self._evidence_of(choice) is not None)
            self._shadow.saved = 0.0
        elif choice == self._plain:
            self._allowance.end()
        self._choice = choice

    def _evidence_of(self, choice: Choice) -> float | None:
        """What shadow drafts say that a choice would have saved; `None` where they cannot tell."""
        can_tell = self._state.can_shadow and choice.tokens > 0 and not self._state.commit_intervals
        return self._shadow.saved if can_tell else None

    def _is_covered(self, choice: Choice) -> bool:
        return choice == self._plain or self._allowance.covers(self._stake(choice), self._evidence_of(choice))

    def _stake(self, choice: Choice) -> float:
        """Plain steps that one failed step costs, going there and back included; 0 while nothing is known."""
        assert self._cell is not None and self._expected is not None
        if not (plain := self._expected.cost(self._plain)):
            return 0.0
        cost = self._expected.cost(choice) + 2 * self._cell.switch + (self._reading if choice.tokens else 0.0)
        return max(_GAIN, cost / plain - 1.0)

    def _needed_gain(self, best: Choice) -> float:
        """How much better, as a share, the best choice must promise to be than the present one."""
        assert self._cell is not None and self._expected is not None
        if best == self._plain:
            return _GAIN
        gain = _GAIN + _HOPE / (1 + self._cell.steps[best])
        if self._choice == self._plain:
            # What was seen in so many drafts may last for as many more: until then it must have earned the
            # change of shapes there and back, and what the drafter has to read.
            changes = 2 * self._cell.switch * float(self._acceptance.offers(1)[0]) + self._reading
            gain += changes / (max(self._acceptance.drafts, 1.0) * self._expected.cost(best))
        return gain

    def _notice_shift(self) -> bool:
        before = self._acceptance.accepted_length(DRAFT)
        shift = self._acceptance.shift()
        if shift == "down" and self._acceptance.accepted_length(DRAFT) < before / 2:
            self._collapses += 1
        return shift is not None

    def _settle(self, renewed: bool) -> None:
        """Look and probe ever more rarely while nothing changes."""
        if renewed:
            self._patience = _LOOK_STEPS
            self._budget.renew()
        else:
            alone = self._state.can_shadow and self._choice == self._plain
            self._patience = min(2 * self._patience, _MOST_LOOK_STEPS * (4 if alone else 1))
            if self._was_probed:
                self._budget.confirm()
        self._was_probed = False

    def _begin_probe(self, cell: CostCell, limit: int) -> None:
        """Probe what was probed least lately, if the budget and the allowance afford it."""
        options = [choice for choice in self._options if choice.tokens <= limit]
        if not options or self._expected is None:
            return
        is_new, self._is_new = self._is_new, False
        if (
            is_new
            and self._choice == self._plain
            and not self._state.can_shadow
            and self._is_covered(options[0])
        ):
            # A new prompt is given its first drafts, if they pay where it is like the first of all.
            first, offered = AcceptanceModel(DRAFT).rates(DRAFT), self._acceptance.offers(DRAFT)
            hoped = Throughput(cell, self._state, first, offered, self._confirmations)
            if max(hoped.rates.values()) > self._expected.rates[self._choice]:
                self._probe = Probe(Choice(DRAFT, options[0].scale), KNOWN, 0.0)
                self._allowance.begin(on_evidence=False)
                return
        probe = min(options, key=lambda option: self._last_probed.get(option, -1))
        drafts = self._choice.tokens == 0 and probe.tokens > 0
        if drafts and self._state.can_shadow and self._is_measured(cell, probe):
            self._next_probe = self._steps + _MOST_LOOK_STEPS
            return
        steps = 1 if drafts and cell.steps[probe] > KNOWN else KNOWN
        # Where nothing is offered no shape changes.
        switches = 2 * cell.switch * float(self._acceptance.offers(1)[0])
        cost = (
            steps * self._expected.loss(probe, self._choice)
            + switches
            + (self._reading if probe.tokens else 0.0)
        )
        is_covered = self._choice != self._plain or self._allowance.covers(self._stake(probe))
        if not is_covered or not self._budget.affords(cost):
            self._next_probe = self._steps + _LOOK_STEPS
            return
        self._last_probed[probe] = self._steps
        self._probe = Probe(probe, steps, cost)
        if self._choice == self._plain:
            self._allowance.begin(on_evidence=False)

    def _is_measured(self, cell: CostCell, probe: Choice) -> bool:
        """Whether what a probe costs is known well enough, and since lately enough."""
        known = self._evidence_of(probe) is not None or cell.verify_at(probe.scale).is_known(probe.tokens)
        return known and self._steps < self._last_drafted + _REMEASURE_STEPS

    def _hopeful(self, cell: CostCell, choice: Choice) -> bool:
        """Whether a choice that is hardly known here may be better than the present one."""
        assert self._expected is not None
        if self._choice == self._plain:
            return choice.tokens > 0
        if choice == self._choice or cell.steps[choice] > KNOWN:
            return False
        hope = _HOPE
        if choice.scale != self._choice.scale:
            if sum(steps for (_, scale), steps in cell.steps.items() if scale == choice.scale) >= 3 * OFTEN:
                return False
            hope = _HOPE_OF_SCALE
        return self._expected.rates[choice] * (1.0 + hope) > self._expected.rates[self._choice]
