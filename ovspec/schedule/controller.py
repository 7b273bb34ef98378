"""The schedule `auto`: as many draft tokens as pay, none when none do."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.acceptance_model import AcceptanceModel, ConfirmationRates
from ovspec.schedule.choice import DEFAULT_DRAFT, Choice, candidates
from ovspec.schedule.cost_model import CostCell, CostModel
from ovspec.schedule.expectations import Expectations
from ovspec.schedule.exploration import ExplorationBudget
from ovspec.schedule.loss_allowance import LossAllowance
from ovspec.schedule.plain_stretch import PlainStretch
from ovspec.schedule.probe import Probe
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec.schedule.shadow_watch import ShadowWatch

# The first steps of a pipeline: the draft length to start from, a longer one and plain decoding in turn.
_OPENING = (4, 4, 4, 0, 0, 0, 8, 8, 8, 0, 0, 4, 4, 0, 0)
# Steps of a probe: the first of them pays for the change of shapes. One that is only after acceptance is a
# single draft, and goes on while drafts pay.
_PROBE_STEPS = 3
_MOST_PROBE_STEPS = 8
# Steps between two looks at the choice while it changes, and when it has not for long; the former also
# lie between two probes.
_LOOK_STEPS = 4
_MOST_LOOK_STEPS = 16
# The same where shadow drafts that would have paid are looked at as they come.
_MOST_ALONE_STEPS = 64
# Another choice must promise this much more, and so much more still when it was never tried here.
_GAIN = 0.01
_UNTRIED_GAIN = 0.05
# What an unknown choice may turn out better than the model says; one measured so often is known.
_HOPE = 0.05
_KNOWN_STEPS = 4
# The same for another sparse budget.
_HOPE_OF_SCALE = 0.2
_KNOWN_SCALE = 24
# Where shadow drafts tell acceptance, drafts of known cost are verified again after so many steps only.
_REMEASURE_STEPS = 1024
# Where drafting is off when a call begins, so many drafts are free if this acceptance would make them pay.
_FREE_DRAFTS = 3
_HOPED_ACCEPTANCE = 0.8
# Drafts that acceptance seen in earlier calls may weigh in the next.
_CARRIED_DRAFTS = 8.0
# A step of drafting is held to take at most so many times what it was expected to: hiccups are no loss.
_DEAREST = 2.0
# A drafter that is behind is not asked when catching up would take this share of what is left to do.
_READ_SHARE = 0.25

Array = NDArray[np.float64]


class AutoSchedule(Schedule):
    """Chooses draft tokens, sparse budget and commit interval by expected tokens per second.

    Costs and acceptance are measured while it runs and kept from call to call. Plain decoding is always
    one of the choices. What is not chosen is probed a step at a time among steps of the choice, on a
    budget of time, so that what is better is found and what is worse costs little. Where shadow drafts tell
    what would be accepted, only unknown costs are probed. An allowance bounds what all of it may lose against
    plain decoding.

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
        self._budget = ExplorationBudget()
        self._allowance = LossAllowance()
        self._plain = Choice(0, 1.0)
        self._stretch = PlainStretch()
        self._choice = Choice(DEFAULT_DRAFT, 1.0)
        self._expected = Expectations()
        self._options: list[Choice] = []
        self._cell: CostCell | None = None
        self._remaining: tuple[int, ...] = ()
        self._commits = False
        self._pending = False
        self._opening = 0
        self._steps = 0
        self._next_look = 0
        self._patience = _LOOK_STEPS
        self._next_probe = 0
        self._probe: Probe | None = None
        self._was_probed = False
        self._last_probed: dict[Choice, int] = {}
        self._free_drafts = 0
        self._collapses = 0
        self._can_shadow = False
        self._shadows = ShadowWatch(self._acceptance)
        self._news = True
        self._last_drafted = 0
        self._reading = 0.0

    @property
    def collapses(self) -> int:
        """Times since `begin` that acceptance fell below half of what it was."""
        return self._collapses

    def begin(self) -> None:
        """Let another prompt speak for itself: costs stay, acceptance counts for little."""
        self._costs.begin()
        self._probe = None
        self._stretch.begin()
        self._shadows.begin(self._steps)
        self._allowance.renew()
        self._acceptance.weaken(_CARRIED_DRAFTS)
        self._settle(renewed=True)
        self._next_look, self._news = self._steps, True
        self._free_drafts = _FREE_DRAFTS
        self._collapses = 0

    def plan(self, state: StepState) -> Plan:
        """The choice, or now and then a probe of another."""
        shadow = self._shadows.tokens(self._steps) if state.can_shadow else 0
        if self._stretch.rest.left:
            if len(state.contexts) == len(self._remaining):
                return Plan(0, self._plain.scale, None, shadow)
            self._stretch.rest.end()
        cell = self._costs.cell(state.contexts)
        limit = min(state.max_draft, self.bound)
        scales = state.budget_scales
        self._remaining, self._commits = state.remaining, bool(state.commit_intervals)
        self._pending, self._can_shadow = any(state.pending), state.can_shadow
        tokens, scale = self._choice
        if scale not in scales or tokens > self.bound:
            self._choice = Choice(min(tokens, self.bound), scale if scale in scales else scales[0])
        if self._opening < len(_OPENING) and limit > 0:
            tokens = _OPENING[self._opening]
            self._opening += 1
            # Dense steps do not go between sparse ones and their commit.
            sparse = tokens > 0 or self._pending
            return self._planned(Choice(tokens, self._choice.scale if sparse else scales[-1]), limit)
        # The last drafts of a sequence are cut short; they are no reason to choose anew.
        if limit >= self._choice.tokens:
            if cell is not self._cell or (self._news and self._steps >= self._next_look):
                self._look(cell, state, limit)
            if self._probe is None and not self._pending:
                self._probe = self._chosen_probe(state, limit)
                if self._probe and self._choice == self._plain:
                    self._allowance.begin(self._stake(self._probe.choice))
        return self._planned(self._probe.choice if self._probe else self._choice, limit, shadow)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from what the step cost and yielded."""
        self._steps += 1
        rest = self._stretch.rest
        if rest.left:
            rest.pass_by()
            if outcome.shadows or outcome.shadow_duration:
                self._observe_shadows(outcome)
            return
        pace = self._costs.pace
        self._costs.observe(outcome)
        if asked := outcome.plan.num_assistant_tokens:
            self._news, self._last_drafted = True, self._steps
            drafts = zip(self._remaining, outcome.proposed, outcome.accepted, strict=True)
            for remaining, proposed, accepted in drafts:
                self._acceptance.observe(min(asked, remaining - 1), proposed, accepted)
        if outcome.commit_rows:
            self._confirmations.at(Choice.of(outcome.plan).scale).observe(
                outcome.commit_rows, outcome.confirmed
            )
        self._observe_shadows(outcome)
        spent = (outcome.draft_duration + outcome.verify_duration + outcome.host_duration) / pace
        duration = spent + outcome.commit_duration / pace
        self._account(outcome, duration * self._stretch.slowdown(self._steps, pace), pace)
        if self._probe is None:
            self._budget.earn(spent + rest.duration)
        else:
            self._follow_probe(outcome, duration)
        rest.forget()
        goes_on = self._stretch.goes_on and self._probe is None and self._choice == self._plain
        if goes_on and not self._commits:
            rest.begin(spent, self._next_look - self._steps if self._news else math.inf)

    def _account(self, outcome: StepOutcome, duration: float, pace: float) -> None:
        """Compare the step with plain decoding; where the allowance is spent, go back to that."""
        choice = Choice.of(outcome.plan)
        if steps := self._stretch.take(choice == self._plain):
            self._allowance.earn(steps)
            if self._stretch.awaited and self._is_covered(self._stretch.awaited):
                self._news = True
        elif self._expected.knows(self._plain):
            # The first plain step after drafts pays for their change of shapes.
            cost = self._expected.cost(choice) + outcome.commit_duration / pace
            most = _DEAREST * (cost + self._costs.cell(outcome.contexts).switch)
            tokens = self._yielded(outcome)
            yielded = None if tokens is None else tokens / len(outcome.accepted)
            self._allowance.settle(yielded, min(duration, most) / self._expected.cost(self._plain))
            if self._allowance.is_spent and self._choice != self._plain:
                self._news = True
                self._choose(self._plain)

    def _yielded(self, outcome: StepOutcome) -> int | None:
        """Tokens that stand for good after a step; `None` while they are provisional."""
        sequences = len(outcome.accepted)
        if not self._commits or (Choice.of(outcome.plan).scale == math.inf and not self._pending):
            return sum(outcome.accepted) + sequences
        return outcome.confirmed + sequences if outcome.commit_rows else None

    def _follow_probe(self, outcome: StepOutcome, duration: float) -> None:
        probe, rate = self._probe, self._expected.rates[self._choice]
        assert probe is not None
        tokens = self._yielded(outcome)
        probe.add(tokens, duration)
        pays = tokens is not None and not outcome.commit_rows and tokens > duration * rate
        if self._choice.tokens == 0 and pays and probe.steps < _MOST_PROBE_STEPS:
            probe.go_on()
        if probe.left <= 0:
            lost = probe.lost(rate)
            self._budget.charge(lost, probe.cost)
            # Drafting that paid is followed up at once: it may be that it pays again.
            self._next_probe = self._steps + (1 if lost < 0.0 else _LOOK_STEPS)
            self._next_look = self._steps
            self._probe, self._was_probed = None, True
            if self._choice == self._plain:
                self._allowance.end()

    def _observe_shadows(self, outcome: StepOutcome) -> None:
        # What would have failed is no reason to begin; what would have paid may be one at once.
        if self._shadows.observe(outcome, self._steps):
            evidence = self._shadows.evidence
            if self._allowance.covers(evidence.stake, evidence.saved):
                self._next_look, self._news = self._steps, True
                self._stretch.rest.end()

    def _look(self, cell: CostCell, state: StepState, limit: int) -> None:
        """Take what was measured into account; choose anew where that pays."""
        self._cell, self._news, self._stretch.awaited = cell, False, None
        changed = self._notice_shift()
        plain = self._plain = Choice(0, state.budget_scales[-1])
        open_ = candidates(cell, state, limit)
        longest = max(self._choice.tokens, *(choice.tokens for choice in open_))
        self._expect(self._expected, state, self._acceptance.rates(longest))
        rates = self._expected.rates
        reading = self._reading = state.unread * self._costs.read_cost
        if reading > _READ_SHARE * sum(state.remaining) / rates[plain]:
            open_ = [choice for choice in open_ if choice.tokens == 0]
        best = max(open_, key=rates.__getitem__)
        if self._choice == plain and not self._is_covered(best):
            self._stretch.awaited = best
            best = max(filter(self._is_covered, open_), key=rates.__getitem__)
        gain = self._needed_gain(best)
        if self._choice not in open_ or rates[best] > (1.0 + gain) * rates[self._choice]:
            self._choose(best)
            changed = True
        if state.can_shadow:
            self._shadows.price(cell, self._expected, plain, len(state.contexts))
        self._settle(changed)
        self._next_look = self._steps + self._patience
        if self._choice == plain:
            drafting = [choice for choice in open_ if choice.tokens > 0]
            self._options = sorted(drafting, key=rates.__getitem__)[-1:]
        else:
            hopeful = [choice for choice in open_ if self._hopeful(cell, choice)]
            self._options = [plain, *sorted(hopeful, key=rates.__getitem__)[-1:]]

    def _expect(self, expected: Expectations, state: StepState, accepted: Array) -> None:
        assert self._cell is not None
        offered = self._acceptance.offers(len(accepted))
        expected.update(self._cell, state, accepted, offered, self._confirmations)

    def _choose(self, choice: Choice) -> None:
        if self._choice == self._plain:
            self._allowance.begin(self._stake(choice), self._evidence_of(choice))
            self._stretch.end(self._steps, self._costs.pace)
            self._shadows.evidence.renew()
        elif choice == self._plain:
            self._allowance.end()
        self._choice = choice

    def _is_shadowed(self, choice: Choice) -> bool:
        """Whether shadow drafts say what a choice would yield."""
        return self._can_shadow and choice.tokens > 0 and not self._commits

    def _evidence_of(self, choice: Choice) -> float | None:
        return self._shadows.evidence.saved if self._is_shadowed(choice) else None

    def _is_covered(self, choice: Choice) -> bool:
        return choice == self._plain or self._allowance.covers(self._stake(choice), self._evidence_of(choice))

    def _stake(self, choice: Choice) -> float:
        assert self._cell is not None
        reading = self._reading if choice.tokens else 0.0
        return self._expected.stake(choice, self._plain, 2 * self._cell.switch + reading)

    def _needed_gain(self, best: Choice) -> float:
        """How much better, as a share, the best choice must promise to be than the present one."""
        assert self._cell is not None
        if best == self._plain:
            return _GAIN
        gain = _GAIN + _UNTRIED_GAIN / (1 + self._cell.steps[best.tokens, best.scale])
        if self._choice == self._plain:
            # What was seen in so many drafts may last for as many more: until then it must have earned the
            # change of shapes there and back, and what the drafter has to read.
            changes = 2 * self._cell.switch * float(self._acceptance.offers(1)[0]) + self._reading
            gain += changes / (max(self._acceptance.drafts, 1.0) * self._expected.cost(best))
        return gain

    def _notice_shift(self) -> bool:
        before = self._acceptance.accepted_length(DEFAULT_DRAFT)
        shift = self._acceptance.shift()
        if shift == "down" and self._acceptance.accepted_length(DEFAULT_DRAFT) < before / 2:
            self._collapses += 1
        return shift is not None

    def _settle(self, renewed: bool) -> None:
        """Look and probe ever more rarely while nothing changes."""
        if renewed:
            self._patience = _LOOK_STEPS
            self._budget.renew()
        else:
            alone = self._can_shadow and self._choice == self._plain
            self._patience = min(2 * self._patience, _MOST_ALONE_STEPS if alone else _MOST_LOOK_STEPS)
            if self._was_probed:
                self._budget.confirm()
        self._was_probed = False

    def _chosen_probe(self, state: StepState, limit: int) -> Probe | None:
        if self._steps < self._next_probe and not self._free_drafts:
            return None
        options = [choice for choice in self._options if choice.tokens <= limit]
        if not options or self._cell is None:
            return None
        free, self._free_drafts = self._free_drafts, 0
        if self._choice.tokens == 0 and free and not state.can_shadow and self._is_covered(options[0]):
            return self._hoped(state, options[0], free)
        if self._steps < self._next_probe:
            return None
        probe = min(options, key=lambda option: self._last_probed.get(option, -1))
        if self._choice.tokens == 0 and state.can_shadow and self._is_measured(probe):
            self._next_probe = self._steps + _MOST_LOOK_STEPS
            return None
        is_known = self._cell.steps[probe.tokens, probe.scale] >= _KNOWN_STEPS
        steps = 1 if probe.tokens > 0 and self._choice.tokens == 0 and is_known else _PROBE_STEPS
        # Where nothing is offered no shape changes.
        switches = 2 * self._cell.switch * float(self._acceptance.offers(1)[0])
        cost = steps * self._expected.loss(probe, self._choice) + switches
        if probe.tokens > 0:
            cost += state.unread * self._costs.read_cost
        is_covered = self._choice != self._plain or self._allowance.covers(self._stake(probe))
        if not is_covered or not self._budget.affords(cost):
            self._next_probe = self._steps + _LOOK_STEPS
            return None
        self._last_probed[probe] = self._steps
        return Probe(probe, steps, cost)

    def _is_measured(self, probe: Choice) -> bool:
        """Whether what a probe costs is known well enough, and since lately enough."""
        assert self._cell is not None
        known = self._is_shadowed(probe) or self._cell.verify_at(probe.scale).is_known(probe.tokens)
        return known and self._steps < self._last_drafted + _REMEASURE_STEPS

    def _hoped(self, state: StepState, probe: Choice, steps: int) -> Probe | None:
        """Drafts to try on a new prompt; none where even high acceptance would not make them pay."""
        hoped = Expectations()
        self._expect(hoped, state, np.full(DEFAULT_DRAFT, _HOPED_ACCEPTANCE))
        pays = max(hoped.rates.values()) > self._expected.rates[self._choice]
        return Probe(Choice(DEFAULT_DRAFT, probe.scale), steps, 0.0) if pays else None

    def _hopeful(self, cell: CostCell, choice: Choice) -> bool:
        """Whether a choice that is hardly known here may be better than the present one."""
        if choice == self._choice or cell.steps[choice.tokens, choice.scale] >= _KNOWN_STEPS:
            return False
        hope = _HOPE
        if choice.scale != self._choice.scale:
            tried = sum(steps for (_, scale), steps in cell.steps.items() if scale == choice.scale)
            if tried >= _KNOWN_SCALE:
                return False
            hope = _HOPE_OF_SCALE
        return self._expected.rates[choice] * (1.0 + hope) > self._expected.rates[self._choice]

    def _planned(self, choice: Choice, limit: int, shadow_tokens: int = 0) -> Plan:
        tokens, interval = min(choice.tokens, limit), self._expected.intervals.get(choice.scale)
        return Plan(tokens, choice.scale, interval, 0 if tokens else shadow_tokens)
