"""The generation loop: prefill, then steps of speculation."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from openvino_genai import GenerationFinishReason

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.commit import CommittedSpeculation
from ovspec.engine.shadow import ShadowDrafts
from ovspec.engine.speculation import Speculation, Step, accept
from ovspec.engine.verifier import Verifier
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.generation.provisional import COMMIT_INTERVALS
from ovspec.generation.sequence import Sequence
from ovspec.runtime.clock import microseconds
from ovspec.runtime.model_runner import ModelRunner
from ovspec.schedule.schedule import ConstantSchedule, Plan, Schedule, StepOutcome, StepState
from ovspec.verify.commit_verify import CommitVerify
from ovspec.verify.limits import MAX_VERIFY_ROWS
from ovspec.verify.verify_mode import VerifyMode, sparse_part

# Called with a sequence and its new tokens; returns whether to continue.
TokenCallback = Callable[[Sequence, list[int]], bool]


class Engine:
    """Generates several sequences together with a target model and, if given, a drafter.

    Args:
        target: the model whose output is generated.
        drafter: proposes tokens; without one every step is plain decoding.
        verify: dense, sparse with a budget, or sparse with commits.
        prefill_chunk: rows per pass while a prompt is read.
        budget_scales: multiples of the sparse budget that a schedule may choose from.
    """

    def __init__(
        self,
        target: ModelRunner,
        drafter: Drafter | None,
        verify: VerifyMode,
        prefill_chunk: int,
        budget_scales: tuple[float, ...] = (1.0,),
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._prefill_chunk = prefill_chunk
        self._budget_scales = budget_scales
        self._commit_intervals: tuple[int, ...] = ()
        self._shadows: ShadowDrafts | None = None
        verifier = Verifier(target, sparse_part(verify))
        self._speculation = Speculation(verifier, drafter)
        if isinstance(verify, CommitVerify):
            self._speculation = CommittedSpeculation(verifier, drafter, verify.interval)
            self._commit_intervals = (verify.interval,) if verify.interval else COMMIT_INTERVALS

    def run(
        self,
        sequences: SequenceOf[Sequence],
        on_tokens: TokenCallback,
        metrics: RawPerfMetrics,
        started: float | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Generate until every sequence has finished or the callback says stop.

        Args:
            sequences: what to generate.
            on_tokens: receives the new tokens of every sequence.
            metrics: updated with counts and durations.
            started: when the user's call began (`microseconds`); the time to the first token starts here.
            schedule: decides how many tokens are drafted; `None`: the constant number of the settings.
        """
        started = microseconds() if started is None else started
        schedule = schedule or ConstantSchedule(sequences[0].settings.num_assistant_tokens)
        schedule.begin()
        self._shadows = (
            ShadowDrafts(self._drafter) if self._drafter and self._drafter.needs_no_model else None
        )
        for sequence in sequences:
            token = self._prefill(sequence, metrics)
            metrics.m_times_to_first_token.append(microseconds() - started)
            metrics.count_tokens(1, 1)
            if not on_tokens(sequence, sequence.append([token])):
                return
        goes_on, since = True, microseconds()
        while goes_on and (running := [sequence for sequence in sequences if not sequence.finished]):
            goes_on, emitted = self._step(running, on_tokens, metrics, schedule)
            if emitted:
                # Steps that only added provisional tokens count towards the next step that emits tokens.
                share = (microseconds() - since) * len(running) / emitted
                metrics.m_durations.extend([share] * emitted)
                metrics.count_tokens(emitted, len(running))
                since = microseconds()
        metrics.acceptance_collapses = schedule.collapses

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of the sequence in both caches."""
        self._target.release(sequence.target)
        if self._drafter:
            self._drafter.release(sequence)

    def _prefill(self, sequence: Sequence, metrics: RawPerfMetrics) -> int:
        logits = self._target.prefill(
            sequence.target, sequence.uncached(sequence.target), self._prefill_chunk
        )
        metrics.prefill_durations.append(self._target.last_pass.duration)
        metrics.inference_durations.append(self._target.last_pass.duration)
        accepted, _ = accept(sequence, Proposal(), logits)
        return accepted.next_token

    def _step(
        self,
        sequences: SequenceOf[Sequence],
        on_tokens: TokenCallback,
        metrics: RawPerfMetrics,
        schedule: Schedule,
    ) -> tuple[bool, int]:
        """Run one planned step; return whether to continue and how many tokens were emitted."""
        started = microseconds()
        state = self._state(sequences)
        plan = schedule.plan(state)
        shadow_duration = self._shadow(sequences, plan)
        step = self._speculation.step(sequences, plan, metrics)
        goes_on, emitted, delivering = True, 0, microseconds()
        for sequence, tokens in zip(sequences, step.tokens, strict=True):
            if tokens:
                emitted += len(tokens)
                goes_on &= on_tokens(sequence, tokens)
        ended = microseconds()
        step.sampling_duration += ended - delivering
        _record(step, plan, ended - started, metrics)
        apart = step.draft_duration + step.verify_duration + step.commit_duration + shadow_duration
        schedule.observe(
            StepOutcome(
                plan,
                state.contexts,
                tuple(step.proposed),
                tuple(step.accepted),
                step.draft_duration,
                step.verify_duration,
                ended - started - apart,
                max(0, state.unread - self._unread(sequences)),
                step.commit_duration,
                step.commit_rows,
                step.confirmed,
                shadow_duration,
                self._shadows.decided(sequences) if self._shadows else (),
            )
        )
        return goes_on, emitted

    def _shadow(self, sequences: SequenceOf[Sequence], plan: Plan) -> float:
        """Make a shadow draft if the plan asks for one; return its time in microseconds."""
        if self._shadows is None or not plan.shadow_tokens or plan.num_assistant_tokens:
            return 0.0
        started = microseconds()
        self._shadows.draft(sequences, plan.shadow_tokens)
        return microseconds() - started

    def _state(self, sequences: SequenceOf[Sequence]) -> StepState:
        longest = max(max(self._speculation.room(sequence) for sequence in sequences), 0)
        commits = bool(self._commit_intervals)
        return StepState(
            contexts=tuple(len(sequence.tokens) for sequence in sequences),
            remaining=tuple(sequence.remaining for sequence in sequences),
            max_draft=min(MAX_VERIFY_ROWS - 1, longest) if self._drafter else 0,
            unread=self._unread(sequences),
            pending=tuple(len(sequence.provisional) for sequence in sequences) if commits else (),
            budget_scales=self._budget_scales,
            commit_intervals=self._commit_intervals,
            can_shadow=self._shadows is not None,
        )

    def _unread(self, sequences: SequenceOf[Sequence]) -> int:
        return self._drafter.unread(sequences) if self._drafter else 0


def _record(step: Step, plan: Plan, duration: float, metrics: RawPerfMetrics) -> None:
    metrics.num_assistant_tokens.append(plan.num_assistant_tokens)
    for proposed, accepted in zip(step.depths, step.accepted, strict=True):
        metrics.count_draft(proposed, accepted)
    if step.draft_duration:
        metrics.draft_durations.append(step.draft_duration)
    metrics.verify_durations.append(step.verify_duration)
    if step.commit_rows:
        metrics.commit_durations.append(step.commit_duration)
        metrics.provisional_lengths.append(step.commit_rows)
        metrics.confirmed_lengths.append(step.confirmed)
    metrics.sampling_durations.append(step.sampling_duration)
    models = step.draft_model_duration + step.verify_duration + step.commit_duration
    metrics.inference_durations.append(models)
    metrics.host_durations.append(duration - models)


def stop(sequences: SequenceOf[Sequence], reason: GenerationFinishReason) -> None:
    """Set the finish reason of every unfinished sequence."""
    for sequence in sequences:
        if not sequence.finished:
            sequence.finish_reason = reason
