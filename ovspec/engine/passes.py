"""Passes: what the scheduler chose is computed, and a fault ends the request that it belongs to, no other."""

from __future__ import annotations

from dataclasses import dataclass

from ovspec.engine.planning import Planner
from ovspec.engine.request_state import RequestState, warn_of_pass
from ovspec.engine.scheduler import Scheduler
from ovspec.engine.speculation import Chunk, Speculation, Step
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.runtime.clock import microseconds
from ovspec.schedule.schedule import Plan


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
    return len(state.sequence.tokens), len(state.output.token_ids)


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
        self._speculation.most_draft = self._scheduler.draft_room(decoding, chunks)
        states = [*decoding, *(chunk.state for chunk in chunks)]
        before = [_Before.of(state) for state in states] if len(states) > 1 else []
        try:
            self._run(decoding, chunks)
            return
        except Exception as error:
            if not before:
                states[0].error = error
                return
            warn_of_pass(error, len(states))
        again = {one.state for one in before if one.restore()}
        for state in decoding:
            if state in again:
                with state.faults():
                    self._run([state], [])
        for chunk in chunks:
            if chunk.state in again:
                with chunk.state.faults():
                    self._run([], [chunk])

    def _run(self, decoding: list[RequestState], chunks: list[Chunk]) -> None:
        started = microseconds()
        held = [len(state.output.token_ids) for state in decoding]
        plans = self._planner.plan(decoding)
        step = self._speculation.step(decoding, plans, chunks)
        duration = microseconds() - started
        read = sum(chunk.tokens for chunk in chunks)
        if decoding:
            self._scheduler.costs.observe(duration, read)
            _record(step, decoding, plans, held, duration)
            reading = self._scheduler.costs.reading(step.verify_duration, read)
            self._planner.observe(decoding, step, duration, reading)
        for chunk in chunks:
            state = chunk.state
            state.read_duration += step.verify_duration
            if state.output.token_ids:
                state.meter.count_first_token(1e6 * state.request.arrival_time, state.read_duration)


def _record(
    step: Step, decoding: list[RequestState], plans: list[Plan], held: list[int], duration: float
) -> None:
    """Count a pass in the metrics of every call that had requests in it.

    Args:
        step, decoding, plans: of the pass.
        held: tokens that the output of each request had before.
        duration: of it all, microseconds.
    """
    models = step.draft_model_duration + step.verify_duration + step.commit_duration
    of_calls: dict[int, list[int]] = {}
    for index, state in enumerate(decoding):
        of_calls.setdefault(id(state.meter), []).append(index)
    for indices in of_calls.values():
        meter = decoding[indices[0]].meter
        metrics: RawPerfMetrics = meter.raw
        asked = max(plans[index].num_assistant_tokens for index in indices)
        metrics.num_assistant_tokens.append(asked)
        for index in indices:
            metrics.count_draft(step.depths[index], step.accepted[index], step.proposed[index])
        if step.draft_duration:
            metrics.draft_durations.append(step.draft_duration)
        metrics.verify_durations.append(step.verify_duration)
        commits = [step.commits[index] for index in indices if index in step.commits]
        if commits:
            metrics.commit_durations.append(step.commit_duration)
            metrics.provisional_lengths.append(sum(count for count, _ in commits))
            metrics.confirmed_lengths.append(sum(kept for _, kept in commits))
        metrics.sampling_durations.append(step.sampling_duration)
        metrics.inference_durations.append(models)
        metrics.host_durations.append(duration - models)
        emitted = sum(len(decoding[index].output.token_ids) - held[index] for index in indices)
        meter.count_tokens(emitted, len(indices))
