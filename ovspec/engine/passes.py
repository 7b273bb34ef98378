"""Passes: what the scheduler chose is computed, and a fault ends the request that it belongs to, no other."""

from __future__ import annotations

from dataclasses import dataclass

from ovspec.devices.clock import microseconds
from ovspec.engine.planning import Planner
from ovspec.engine.requests.meter import Meter
from ovspec.engine.requests.request_state import RequestState, warn_of_pass
from ovspec.engine.requests.request_step import RequestStep, Step
from ovspec.engine.scheduler import Scheduler
from ovspec.engine.verify.speculation import Chunk, Speculation
from ovspec.errors import fault_of
from ovspec.generation.raw_metrics import RawPerfMetrics


@dataclass(frozen=True, slots=True)
class _Before:
    """What a request has before a pass, to begin again where the pass fails."""

    state: RequestState
    progress: tuple[int, int]
    length: int

    @classmethod
    def of(cls, state: RequestState) -> _Before:
        """Of now."""
        target = state.sequence.target
        return cls(state, _progress(state), target.length)

    def restore(self) -> bool:
        """Take back what the pass wrote; whether the request is still to be advanced."""
        target = self.state.sequence.target
        self.state.go_on()
        if self.state.ended or _progress(self.state) != self.progress:
            return False
        target.rollback(min(self.length, target.length))
        return True


def _progress(state: RequestState) -> tuple[int, int]:
    return sum(len(sequence.tokens) for sequence in state.sequences), len(state.output.token_ids)


class Passes:
    """Runs passes, and counts them.

    A fault of one row fails its request, see `RequestState.faults`. Where a pass fails as a whole, nobody can
    be blamed: each of its requests has one alone then, and who fails alone is at fault.

    Args:
        scheduler: whose requests they advance.
        speculation: does it.
        planner: says how much is drafted.
    """

    def __init__(self, scheduler: Scheduler, speculation: Speculation, planner: Planner) -> None:
        self._scheduler, self._speculation, self._planner = scheduler, speculation, planner

    def run(self, decoding: list[RequestState], chunks: list[Chunk]) -> None:
        """Advance requests by a pass; who can't be advanced has an `error` then."""
        most_draft = self._scheduler.draft_room(decoding, chunks)
        states = [*decoding, *(chunk.state for chunk in chunks)]
        before = [_Before.of(state) for state in states] if len(states) > 1 else []
        try:
            self._run(decoding, chunks, most_draft)
            return
        except BaseException as error:
            fault = fault_of(error)
            if not before:
                states[0].error = fault
                return
            warn_of_pass(fault, len(states))
        again = {one.state for one in before if one.restore()}
        for state in decoding:
            if state in again:
                with state.faults():
                    self._run([state], [], most_draft)
        for chunk in chunks:
            if chunk.state in again:
                with chunk.state.faults():
                    self._run([], [chunk], most_draft)

    def _run(self, decoding: list[RequestState], chunks: list[Chunk], most_draft: int | None) -> None:
        started = microseconds()
        requests, groups = self._planner.plan(decoding, most_draft)
        step = self._speculation.step(requests, chunks, most_draft)
        duration = microseconds() - started
        read = sum(chunk.tokens for chunk in chunks)
        if decoding:
            self._scheduler.costs.observe(duration, read)
            _record(step, duration)
            reading = self._scheduler.costs.reading(step.verify_duration, read)
            self._planner.observe(groups, step, duration - reading)
        for chunk in chunks:
            state = chunk.state
            state.read_duration += step.verify_duration
            if state.has_begun:
                state.meter.count_first_token(1e6 * state.request.arrival_time, state.read_duration)


def _record(step: Step, duration: float) -> None:
    """Count a step of so many microseconds in the metrics of every call that had requests in it."""
    of_calls: dict[Meter, list[RequestStep]] = {}
    for request in step.requests:
        of_calls.setdefault(request.state.meter, []).append(request)
    for meter, requests in of_calls.items():
        metrics: RawPerfMetrics = meter.raw
        metrics.num_assistant_tokens.append(max(r.plan.num_assistant_tokens for r in requests))
        if step.draft_duration:
            metrics.draft_durations.append(step.draft_duration)
        commits = [request.commit for request in requests if request.commit]
        passes = metrics.commit_durations if commits else metrics.verify_durations
        passes.append(step.verify_duration)
        if commits:
            metrics.provisional_lengths.append(sum(count for count, _ in commits))
            metrics.confirmed_lengths.append(sum(kept for _, kept in commits))
        metrics.sampling_durations.append(step.sampling_duration)
        metrics.inference_durations.append(step.model_duration)
        metrics.host_durations.append(duration - step.model_duration)
        meter.count_tokens(sum(request.emitted for request in requests), len(requests))
