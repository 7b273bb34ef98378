"""The schedule `auto`: as many draft tokens as pay, none when none do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.acceptance_model import AcceptanceModel, ConfirmationRate
from ovspec.cost_model import CostCell, CostModel
from ovspec.exploration import ExplorationBudget
from ovspec.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec.throughput import Expectation, expect, with_commits

# Draft lengths to choose from, within the bound.
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 63)
# The first steps of a pipeline: the draft length to start from, a longer one and plain decoding in turn.
_DEFAULT_DRAFT = 4
_OPENING = (4, 4, 4, 0, 0, 0, 8, 8, 8, 0, 0, 4, 4, 0, 0)
# Steps of a probe: the first of them pays for the change of shapes. One that is only after acceptance is a
# single draft, and goes on while drafts pay.
_PROBE_STEPS = 3
_MOST_PROBE_STEPS = 8
# Steps between two looks at the choice while it changes, and when it has not for long; the former also
# lie between two probes.
_LOOK_STEPS = 4
_MOST_LOOK_STEPS = 16
# Another choice must promise this much more, and so much more still when it was never tried here.
_GAIN = 0.01
_UNTRIED_GAIN = 0.05
# What an unknown choice may turn out better than the model says; one measured so often is known.
_HOPE = 0.05
_KNOWN_STEPS = 4
# The same for another sparse budget.
_HOPE_OF_SCALE = 0.2
_KNOWN_SCALE = 24
# Where drafting is off when a call begins, so many drafts are free if this acceptance would make them pay.
_FREE_DRAFTS = 3
_HOPED_ACCEPTANCE = 0.8
# Rate at which provisional tokens are taken to be confirmed before any was.
_PRIOR_CONFIRMED = 0.99
# Drafts that acceptance seen in earlier calls may weigh in the next.
_CARRIED_DRAFTS = 8.0
# Share of a step that shadow drafts may take.
_SHADOW_SHARE = 0.004
# A drafter that is behind is not asked when catching up would take this share of what is left to do.
_READ_SHARE = 0.25


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """Draft tokens per step, and the multiple of the sparse budget."""

    tokens: int
    scale: float


class AutoSchedule(Schedule):
    """Chooses draft tokens, sparse budget and commit interval by expected tokens per second.

    Costs and acceptance are measured while it runs and kept from call to call. Plain decoding is always
    one of the choices. What is not chosen is probed a step at a time among steps of the choice, on a
    budget of time, so that what is better is found and what is worse costs little.

    Args:
        max_num_assistant_tokens: longest draft it may ask for.

    Attributes:
        bound: longest draft in the present call.
    """

    def __init__(self, max_num_assistant_tokens: int) -> None:
        self.bound = max_num_assistant_tokens
        self._costs = CostModel()
        self._acceptance = AcceptanceModel(max_num_assistant_tokens)
        self._confirmations: dict[float, ConfirmationRate] = {}
        self._budget = ExplorationBudget()
        self._choice = Choice(_DEFAULT_DRAFT, 1.0)
        self._expected: dict[float, Expectation] = {}
        self._rates: dict[Choice, float] = {}
        self._intervals: dict[float, int] = {}
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
        self._probe: Choice | None = None
        self._was_probed = False
        self._probe_cost = 0.0
        self._probe_steps = 0
        self._probe_left = 0
        self._probe_emitted = 0
        self._probe_lost = 0.0
        self._last_probed: dict[Choice, int] = {}
        self._free_drafts = 0
        self._collapses = 0
        self._next_shadow = 0
        self._news = True

    @property
    def collapses(self) -> int:
        """Times since `begin` that acceptance fell below half of what it was."""
        return self._collapses

    def begin(self) -> None:
        """Let another prompt speak for itself: costs stay, acceptance counts for little."""
        self._costs.begin()
        self._probe = None
        self._acceptance.weaken(_CARRIED_DRAFTS)
        self._settle(renewed=True)
        self._next_look, self._news = self._steps, True
        self._free_drafts = _FREE_DRAFTS if self._choice.tokens == 0 else 0
        self._collapses = 0

    def plan(self, state: StepState) -> Plan:
        """The choice, or now and then a probe of another."""
        cell = self._costs.cell(state.contexts)
        limit = min(state.max_draft, self.bound)
        scales = state.budget_scales
        self._remaining, self._commits = state.remaining, bool(state.commit_intervals)
        self._pending = any(state.pending)
        if self._choice.scale not in scales or self._choice.tokens > self.bound:
            scale = self._choice.scale if self._choice.scale in scales else scales[0]
            self._choice = Choice(min(self._choice.tokens, self.bound), scale)
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
        shadows = state.can_shadow and self._steps >= self._next_shadow
        return self._planned(self._probe or self._choice, limit, _DEFAULT_DRAFT if shadows else 0)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from what the step cost and yielded."""
        pace = self._costs.pace
        self._costs.observe(outcome)
        if asked := outcome.plan.num_assistant_tokens:
            self._news = True
            drafts = zip(self._remaining, outcome.proposed, outcome.accepted, strict=True)
            for remaining, proposed, accepted in drafts:
                self._acceptance.observe(min(asked, remaining - 1), proposed, accepted)
        if outcome.commit_rows:
            self._confirmation(_scale(outcome.plan)).observe(outcome.commit_rows, outcome.confirmed)
        self._observe_shadows(outcome)
        self._steps += 1
        duration = (outcome.draft_duration + outcome.verify_duration + outcome.host_duration) / pace
        if self._probe is None:
            self._budget.earn(duration)
            return
        emitted = sum(outcome.accepted) + len(outcome.accepted)
        self._probe_lost += duration + outcome.commit_duration / pace
        self._probe_steps += 1
        self._probe_left -= 1
        if not self._commits or (_scale(outcome.plan) == math.inf and not self._pending):
            self._probe_emitted += emitted
            paid = emitted > duration * self._rates[self._choice]
            if self._choice.tokens == 0 and paid and self._probe_steps < _MOST_PROBE_STEPS:
                self._probe_left = max(self._probe_left, 1)
        elif outcome.commit_rows:
            self._probe_emitted += outcome.confirmed + len(outcome.accepted)
        else:
            # A probe of another budget goes on to the commit that judges it.
            self._probe_left = max(self._probe_left, 1)
        if self._probe_left <= 0:
            self._end_probe()

    def _observe_shadows(self, outcome: StepOutcome) -> None:
        for proposed, accepted in outcome.shadows:
            self._acceptance.observe(_DEFAULT_DRAFT, proposed, accepted)
            self._next_look, self._news = self._steps + 1, True
        if outcome.shadow_duration:
            affordable = _SHADOW_SHARE * (outcome.verify_duration + outcome.host_duration)
            self._next_shadow = self._steps + math.ceil(outcome.shadow_duration / affordable)

    def _end_probe(self) -> None:
        lost = self._probe_lost - self._probe_emitted / self._rates[self._choice]
        self._budget.charge(lost, self._probe_cost)
        # Drafting that paid is followed up at once: it may be that it pays again.
        self._next_probe = self._steps + (1 if lost < 0.0 else _LOOK_STEPS)
        self._next_look = self._steps
        self._probe, self._was_probed = None, True

    def _look(self, cell: CostCell, state: StepState, limit: int) -> None:
        """Take what was measured into account; choose anew where that pays."""
        self._cell, self._news = cell, False
        changed = self._notice_shift()
        plain = Choice(0, state.budget_scales[-1])
        candidates = self._candidates(cell, state, limit)
        longest = max(self._choice.tokens, *(choice.tokens for choice in candidates))
        self._expect(cell, state, self._acceptance.rates(longest))
        reading = state.unread * self._costs.read_cost
        if reading > _READ_SHARE * sum(state.remaining) / self._rates[plain]:
            candidates = [choice for choice in candidates if choice.tokens == 0]
        best = max(candidates, key=self._rates.__getitem__)
        gain = _GAIN if best == plain else _GAIN + _UNTRIED_GAIN / (1 + cell.steps[best.tokens, best.scale])
        if self._choice not in candidates or self._rates[best] > (1.0 + gain) * self._rates[self._choice]:
            self._choice = best
            changed = True
        self._settle(changed)
        self._next_look = self._steps + self._patience
        if self._choice == plain:
            drafting = [choice for choice in candidates if choice.tokens > 0]
            self._options = sorted(drafting, key=self._rates.__getitem__)[-1:]
        else:
            hopeful = [choice for choice in candidates if self._hopeful(cell, choice)]
            self._options = [plain, *sorted(hopeful, key=self._rates.__getitem__)[-1:]]

    def _notice_shift(self) -> bool:
        before = self._acceptance.accepted_length(_DEFAULT_DRAFT)
        shift = self._acceptance.shift()
        if shift == "down" and self._acceptance.accepted_length(_DEFAULT_DRAFT) < before / 2:
            self._collapses += 1
        return shift is not None

    def _settle(self, renewed: bool) -> None:
        """Look and probe ever more rarely while nothing changes."""
        if renewed:
            self._patience = _LOOK_STEPS
            self._budget.renew()
        else:
            self._patience = min(2 * self._patience, _MOST_LOOK_STEPS)
            if self._was_probed:
                self._budget.confirm()
        self._was_probed = False

    def _expect(self, cell: CostCell, state: StepState, accepted: Array) -> None:
        """Work out the rate of every choice with as many draft tokens as there are rates of acceptance."""
        offered = self._acceptance.offers(len(accepted))
        self._rates = {}
        for scale in state.budget_scales:
            steps = expect(cell, scale, len(state.contexts), accepted, offered)
            if state.commit_intervals and scale < math.inf:
                confirmed = self._confirmation(scale).rate
                options = [
                    (with_commits(steps, cell, len(state.contexts), interval, confirmed), interval)
                    for interval in state.commit_intervals
                ]
                steps, self._intervals[scale] = max(options, key=lambda option: option[0].rates().max())
            self._expected[scale] = steps
            for tokens, rate in enumerate(steps.rates().tolist()):
                self._rates[Choice(tokens, scale)] = rate

    @staticmethod
    def _candidates(cell: CostCell, state: StepState, limit: int) -> list[Choice]:
        """What may be chosen: drafts no longer than twice what was measured here."""
        found = []
        for scale in state.budget_scales:
            measured = max(cell.verify_at(scale).sizes, default=0) // len(state.contexts)
            longest = min(limit, max(_DEFAULT_DRAFT, 2 * measured))
            found += [Choice(tokens, scale) for tokens in _LENGTHS if tokens <= longest]
        return found

    def _chosen_probe(self, state: StepState, limit: int) -> Choice | None:
        if self._steps < self._next_probe and not self._free_drafts:
            return None
        options = [choice for choice in self._options if choice.tokens <= limit]
        if not options or self._cell is None:
            return None
        if self._choice.tokens == 0 and self._free_drafts:
            self._free_drafts = 0
            return self._started(self._hoped(state, options[0]), _FREE_DRAFTS, 0.0)
        if self._steps < self._next_probe:
            return None
        probe = min(options, key=lambda option: self._last_probed.get(option, -1))
        is_known = self._cell.steps[probe.tokens, probe.scale] >= _KNOWN_STEPS
        steps = 1 if probe.tokens > 0 and self._choice.tokens == 0 and is_known else _PROBE_STEPS
        expected = self._expected[probe.scale]
        loss = float(expected.cost[probe.tokens] - expected.tokens[probe.tokens] / self._rates[self._choice])
        # Where nothing is offered no shape changes.
        cost = steps * loss + 2 * self._cell.switch * float(self._acceptance.offers(1)[0])
        if probe.tokens > 0:
            cost += state.unread * self._costs.read_cost
        if not self._budget.affords(cost):
            return None
        self._last_probed[probe] = self._steps
        return self._started(probe, steps, cost)

    def _started(self, probe: Choice | None, steps: int, cost: float) -> Choice | None:
        self._probe_left, self._probe_cost = steps, cost
        self._probe_steps, self._probe_emitted, self._probe_lost = 0, 0, 0.0
        return probe

    def _hoped(self, state: StepState, probe: Choice) -> Choice | None:
        """A draft to try on a new prompt; none where even high acceptance would not make it pay."""
        assert self._cell is not None
        rates, expected = self._rates, dict(self._expected)
        self._expect(self._cell, state, np.full(_DEFAULT_DRAFT, _HOPED_ACCEPTANCE))
        pays = max(self._rates.values()) > rates[self._choice]
        self._rates, self._expected = rates, expected
        return Choice(_DEFAULT_DRAFT, probe.scale) if pays else None

    def _hopeful(self, cell: CostCell, choice: Choice) -> bool:
        """Whether a choice that is hardly known here may be better than the present one."""
        if choice == self._choice or cell.steps[choice.tokens, choice.scale] >= _KNOWN_STEPS:
            return False
        hope = _HOPE
        if choice.scale != self._choice.scale:
            if (
                sum(steps for (_, scale), steps in cell.steps.items() if scale == choice.scale)
                >= _KNOWN_SCALE
            ):
                return False
            hope = _HOPE_OF_SCALE
        return self._rates[choice] * (1.0 + hope) > self._rates[self._choice]

    def _confirmation(self, scale: float) -> ConfirmationRate:
        if scale not in self._confirmations:
            known = [rate.rate for rate in self._confirmations.values()]
            self._confirmations[scale] = ConfirmationRate(max(known, default=_PRIOR_CONFIRMED))
        return self._confirmations[scale]

    def _planned(self, choice: Choice, limit: int, shadow_tokens: int = 0) -> Plan:
        tokens, interval = min(choice.tokens, limit), self._intervals.get(choice.scale)
        return Plan(tokens, choice.scale, interval, 0 if tokens else shadow_tokens)


def _scale(plan: Plan) -> float:
    return 1.0 if plan.budget_scale is None else plan.budget_scale
