"""Planning: asks the schedules of the running requests what a step is to do, and tells them what it did."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ovspec.drafters.drafter import Drafter
from ovspec.engine.requests.allotment import allot
from ovspec.engine.requests.request_mode import RequestMode
from ovspec.engine.requests.request_state import RequestState
from ovspec.engine.requests.request_step import RequestStep, Step
from ovspec.engine.verify.speculation import Speculation
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that were planned together.

    Attributes:
        before: what their schedule knew.
        plan: what it said.
        requests: theirs of the step.
    """

    before: StepState
    plan: Plan
    requests: list[RequestStep]


class Planner:
    """Plans steps; requests that share a schedule and a mode are planned together.

    Args:
        drafter: proposes tokens, if there is one.
        speculation: knows what room for drafts a request has.
    """

    def __init__(self, drafter: Drafter | None, speculation: Speculation) -> None:
        self._drafter = drafter
        self._speculation = speculation

    def plan(
        self, decoding: SequenceOf[RequestState], most_draft: int | None
    ) -> tuple[list[RequestStep], list[Group]]:
        """What each request is to do in the next step, and those of them that schedules hear of.

        Args:
            decoding: the requests.
            most_draft: as of `Speculation.step`.
        """
        if len(decoding) == 1 and (plan := decoding[0].schedule.constant):
            return [RequestStep(decoding[0], plan)], []
        together: dict[tuple[Schedule, RequestMode], list[RequestState]] = {}
        for state in decoding:
            together.setdefault((state.schedule, state.mode), []).append(state)
        groups, planned = list[Group](), dict[RequestState, RequestStep]()
        for (schedule, _), requests in together.items():
            before, plan = None, schedule.constant
            if plan is None:
                intervals = self._commit_intervals(requests)
                if self._drafter is not None or len(intervals) > 1:
                    before = self._state(requests, intervals, most_draft)
                if before is not None and _has_choice(before):
                    plan = schedule.plan(before)
                else:
                    before, plan = None, Plan(0, intervals[0] if intervals else None)
            steps = self._steps(requests, plan, most_draft)
            planned |= zip(requests, steps, strict=True)
            if before is not None:
                groups.append(Group(before, plan, steps))
        return [planned[state] for state in decoding], groups

    def observe(self, groups: SequenceOf[Group], step: Step, duration: float) -> None:
        """Tell the schedules what the step did and cost.

        Args:
            groups: as `plan` gave them.
            step: what was done.
            duration: of it all without parts of prompts, microseconds.
        """
        rest = duration - step.draft_duration
        for group in groups:
            both = zip(group.requests, group.before.contexts, strict=True)
            advanced = [(request, context) for request, context in both if not request.waits]
            requests = [request for request, _ in advanced]
            if all(request.forced for request in requests):
                continue  # nothing was done as planned
            states = [request.state for request in requests]
            # Requests with other schedules share the pass: each answers for its part of the rows.
            share = _rows(requests) / _rows(step.requests)
            outcome = StepOutcome(
                group.plan,
                tuple(request.outcome(context) for request, context in advanced),
                share * step.draft_duration,
                share * rest,
                max(0, group.before.unread - self._unread(states)),
                sum(request.model_tokens for request in requests),
            )
            states[0].schedule.observe(outcome)

    def _steps(
        self, requests: SequenceOf[RequestState], plan: Plan, most_draft: int | None
    ) -> list[RequestStep]:
        """The plan of each request: with `auto` those that accept more of a model's drafts get more."""
        settings, drafter = requests[0].sequence.settings, self._drafter
        is_auto = settings.num_assistant_tokens_schedule == "auto" and not settings.tree_depth
        # The schedule drops what of trees and lookups is not worth its row.
        if len(requests) == 1 or not is_auto or drafter is None or not drafter.has_model:
            return [RequestStep(state, plan) for state in requests]
        rooms = [
            min(MAX_NUM_ASSISTANT_TOKENS, self._speculation.room(state, most_draft)) for state in requests
        ]
        model = plan.model
        asked = plan.num_assistant_tokens if model is None else model.tokens
        numbers = allot(asked, [state.acceptance.rate for state in requests], rooms)
        return [
            RequestStep(
                state,
                plan._replace(num_assistant_tokens=tokens)
                if model is None
                else plan._replace(model=model._replace(tokens=tokens)),
            )
            for state, tokens in zip(requests, numbers, strict=True)
        ]

    def _commit_intervals(self, requests: SequenceOf[RequestState]) -> tuple[int, ...]:
        intervals = requests[0].mode.commit_intervals
        if not intervals:
            return ()
        # Dense steps have nothing to be confirmed.
        return (0,) if all(map(self._speculation.reads_all, requests)) else (0, *intervals)

    def _state(
        self, requests: SequenceOf[RequestState], intervals: tuple[int, ...], most_draft: int | None
    ) -> StepState:
        longest = max(max(self._speculation.room(state, most_draft) for state in requests), 0)
        sequences, mode = [state.sequence for state in requests], requests[0].mode
        return StepState(
            contexts=tuple(len(sequence.tokens) for sequence in sequences),
            remaining=tuple(sequence.remaining for sequence in sequences),
            max_draft=min(MAX_NUM_ASSISTANT_TOKENS, longest) if self._drafter else 0,
            unread=self._unread(requests),
            pending=tuple(sequence.provisional for sequence in sequences) if mode.commits else (),
            commit_intervals=intervals,
            has_lookup=self._drafter is not None and self._drafter.looks_up,
            has_model=self._drafter is not None
            and self._drafter.has_model
            and any(self._drafter.would_draft(sequence) for sequence in sequences),
            trees=any(sequence.settings.branching_factor > 1 for sequence in sequences),
        )

    def _unread(self, requests: SequenceOf[RequestState]) -> int:
        return self._drafter.unread([state.sequence for state in requests]) if self._drafter else 0


def _has_choice(state: StepState) -> bool:
    """Whether there is anything to decide: who drafts, how much is read, or when it is confirmed."""
    drafts = state.has_lookup or state.has_model
    return drafts or len(state.commit_intervals) > 1


def _rows(requests: SequenceOf[RequestStep]) -> int:
    return sum(request.rows for request in requests)
