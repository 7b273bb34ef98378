"""Planning: asks the schedules of the running requests what a step is to do, and tells them what it did."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ovspec.drafters.drafter import Drafter
from ovspec.engine.allotment import allot
from ovspec.engine.request_state import RequestState
from ovspec.engine.speculation import Speculation, Step
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec.verify.limits import MAX_NUM_ASSISTANT_TOKENS


class Planner:
    """Plans steps; requests that share a schedule and a mode are planned together.

    Args:
        drafter: proposes tokens, if there is one.
        speculation: knows what room for drafts a request has.
    """

    def __init__(self, drafter: Drafter | None, speculation: Speculation) -> None:
        self._drafter = drafter
        self._speculation = speculation
        # The requests of each group, and what its step began with and was to do.
        self._planned: list[tuple[list[int], StepState, Plan]] = []

    def plan(self, decoding: SequenceOf[RequestState]) -> list[Plan]:
        """What each request is to do in the next step."""
        self._planned, plans = [], dict[int, Plan]()
        if len(decoding) == 1 and (plan := self._schedule_of(decoding).constant):
            return [plan]
        groups: dict[tuple[int, int], list[int]] = {}
        for index, state in enumerate(decoding):
            groups.setdefault((id(state.schedule), id(state.mode)), []).append(index)
        for group in groups.values():
            requests = [decoding[index] for index in group]
            schedule = self._schedule_of(requests)
            plan = schedule.constant
            if plan is None:
                before = self._state(requests)
                plan = schedule.plan(before)
                self._planned.append((group, before, plan))
            plans |= zip(group, self._shares(requests, plan), strict=True)
        return [plans[index] for index in range(len(decoding))]

    def _schedule_of(self, requests: SequenceOf[RequestState]) -> Schedule:
        """The schedule that requests share, bounded by what they ask for."""
        schedule = requests[0].schedule
        if isinstance(schedule, AutoSchedule) and requests[0].request.schedule is None:
            # The little room of the last drafts is no reason to choose anew; a lower bound is one.
            asked = max(state.sequence.settings.num_assistant_tokens for state in requests)
            schedule.bound = asked if self._drafter else 0
        return schedule

    def observe(
        self,
        decoding: SequenceOf[RequestState],
        step: Step,
        duration: float,
        reading: float,
    ) -> None:
        """Tell the schedules what the step did and cost.

        Args:
            decoding: the requests, as in `plan`.
            step: what was done.
            duration: of it all, microseconds.
            reading: of the pass, what parts of prompts took.
        """
        rest = duration - reading - step.draft_duration - step.commit_duration
        for group, before, plan in self._planned:
            requests = [decoding[index] for index in group]
            commits = [step.commits[index] for index in group if index in step.commits]
            # Requests with other schedules share the pass: each answers for its part of the rows.
            share = _rows(step, group) / _rows(step, range(len(decoding)))
            outcome = StepOutcome(
                plan,
                before.contexts,
                tuple(step.proposed[index] for index in group),
                tuple(step.accepted[index] for index in group),
                share * step.draft_duration,
                share * rest / step.passes,
                max(0, before.unread - self._unread(requests)),
                step.commit_duration if commits else 0.0,
                sum(count for count, _ in commits),
                sum(kept for _, kept in commits),
                tuple(step.matches[index] for index in group),
                tuple(step.judged[index] for index in group),
                tuple(step.held[index] for index in group),
                sum(step.drafted[index] for index in group if not step.matches[index]),
            )
            for _ in range(step.passes):  # several are plain ones, each a step to the schedule
                requests[0].schedule.observe(outcome)

    def _shares(self, requests: SequenceOf[RequestState], plan: Plan) -> list[Plan]:
        """The plan of each request: with `auto` those that accept more of a model's drafts get more."""
        settings, drafter = requests[0].sequence.settings, self._drafter
        is_auto = settings.num_assistant_tokens_schedule == "auto" and not settings.tree_depth
        # The schedule drops what of trees and lookups is not worth its row.
        if len(requests) == 1 or not is_auto or drafter is None or not drafter.has_model:
            return [plan] * len(requests)
        rooms = [min(MAX_NUM_ASSISTANT_TOKENS, self._speculation.room(state)) for state in requests]
        rates = [state.acceptance.rate for state in requests]
        if plan.model is None:
            numbers = allot(plan.num_assistant_tokens, rates, rooms)
            return [plan._replace(num_assistant_tokens=tokens) for tokens in numbers]
        numbers = allot(plan.model.tokens, rates, rooms)
        return [plan._replace(model=plan.model._replace(tokens=tokens)) for tokens in numbers]

    def _state(self, requests: SequenceOf[RequestState]) -> StepState:
        longest = max(max(self._speculation.room(state) for state in requests), 0)
        sequences, mode = [state.sequence for state in requests], requests[0].mode
        return StepState(
            contexts=tuple(len(sequence.tokens) for sequence in sequences),
            remaining=tuple(sequence.remaining for sequence in sequences),
            max_draft=min(MAX_NUM_ASSISTANT_TOKENS, longest) if self._drafter else 0,
            unread=self._unread(requests),
            pending=tuple(len(sequence.provisional) for sequence in sequences) if mode.commits else (),
            budget_scales=mode.budget_scales,
            commit_intervals=mode.commit_intervals,
            has_lookup=self._drafter is not None and self._drafter.looks_up,
            has_model=self._drafter is not None and self._drafter.has_model,
            trees=any(sequence.settings.branching_factor > 1 for sequence in sequences),
        )

    def _unread(self, requests: SequenceOf[RequestState]) -> int:
        return self._drafter.unread([state.sequence for state in requests]) if self._drafter else 0


def _rows(step: Step, indices: SequenceOf[int]) -> int:
    return sum(1 + step.proposed[index] for index in indices)
