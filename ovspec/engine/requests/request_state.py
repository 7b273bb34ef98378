"""A request while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ovspec.engine.requests.allotment import AcceptanceRate
from ovspec.engine.requests.beams import Beams
from ovspec.engine.requests.meter import Meter
from ovspec.engine.requests.request import Request, RequestMetrics, RequestOutput, Writer
from ovspec.engine.requests.request_mode import RequestMode
from ovspec.engine.requests.token_logprobs import token_logprobs
from ovspec.errors import fault_of
from ovspec.generation.sequence import Sequence
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import why_lossy
from ovspec.passes.pass_stats import PassStats
from ovspec.schedule.schedule import Schedule

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RequestState:
    """What an engine knows of a request.

    Attributes:
        request: as it came.
        sequence: its tokens and blocks.
        mode: how its drafts are verified.
        schedule: decides how much is drafted.
        meter: counts its passes.
        prefill: how its prompt is read; `None`: densely.
        beams: searched behind its prompt; `None`: its sequence goes on.
        output: what has come since the last step was handed out.
        read_duration: model time of reading its prompt, microseconds.
        provisional_writers: who wrote its provisional tokens.
        passes_waited: passes of late that had no room for its commit.
        acceptance: of its last drafts.
        num_drafts: drafts that were verified.
        num_draft_tokens: tokens that they had.
        accepted_per_pos: entry i: drafts whose token i was accepted.
        attended_tokens: context tokens that its verification passes read.
        context_tokens: those that dense passes would have read.
        prompt_reads: of the rows of its prompt, the context that they read and that dense ones would have.
        num_cached_tokens: tokens whose keys and values were there when it began to run.
        num_prompt_logprobs: tokens of its prompt whose log probabilities are known.
        aborted: whether it ends before the next step.
        error: why it fails; its last output has it.
    """

    request: Request
    sequence: Sequence
    mode: RequestMode
    schedule: Schedule
    meter: Meter
    output: RequestOutput
    prefill: SparsePrefill | None = None
    beams: Beams | None = None
    read_duration: float = 0.0
    provisional_writers: list[Writer] = field(default_factory=list)
    passes_waited: int = 0
    acceptance: AcceptanceRate = field(default_factory=AcceptanceRate)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    attended_tokens: float = 0.0
    context_tokens: float = 0.0
    prompt_reads: tuple[float, float] = (0.0, 0.0)
    num_cached_tokens: int = 0
    num_prompt_logprobs: int = 0
    aborted: bool = False
    error: Exception | None = None

    @contextmanager
    def faults(self) -> Iterator[None]:
        """A block that concerns this request alone: what it raises fails no other one."""
        try:
            yield
        except BaseException as error:
            self.error = fault_of(error)

    def go_on(self) -> None:
        """After a pass that was cut short: go on from the tokens that are there."""
        if self.beams is not None and self.beams.sequences:
            self.beams.go_on()
            return
        self.sequence.trim_caches()
        del self.provisional_writers[self.sequence.provisional :]

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be done for it."""
        return self.error is not None or self.sequence.finished

    @property
    def sequences(self) -> list[Sequence]:
        """What a pass advances: the sequence, or the beams behind it."""
        return (self.beams.sequences if self.beams is not None else []) or [self.sequence]

    @property
    def has_begun(self) -> bool:
        """Whether the step brought tokens, or beams have some."""
        return bool(self.output.token_ids or (self.beams is not None and self.beams.sequences))

    @property
    def width(self) -> int:
        """Rows of a pass without drafts."""
        return 1 if self.beams is None else self.beams.num_beams

    @property
    def unread(self) -> int:
        """Tokens to read before the next step can decode: of the prompt, and of what a preemption cost."""
        sequence = self.sequence
        behind = 1 if len(sequence.tokens) > sequence.prompt_length else 0
        return len(sequence.tokens) - behind - sequence.target.length

    @property
    def most_rows(self) -> int:
        """Rows of a pass that verifies its longest draft, behind provisional tokens that it may confirm."""
        settings = self.sequence.settings
        drafted = MAX_NUM_ASSISTANT_TOKENS if settings.tree_depth else settings.num_assistant_tokens
        return self.width + self.sequence.provisional + drafted

    def emit(
        self,
        tokens: list[int],
        writers: SequenceOf[Writer],
        logits: NDArray[np.float32],
        rows: SequenceOf[int],
    ) -> None:
        """Append final tokens, up to the end of the sequence.

        Args:
            tokens: accepted.
            writers: of each.
            logits: f32 `[rows, vocab]` of the pass.
            rows: the row that each token follows from.
        """
        taken = self.sequence.append(tokens)
        output, count = self.output, len(taken)
        output.token_ids += taken
        output.writers += writers[:count]
        if self.request.logprobs is not None:
            pairs = zip(taken, rows, strict=False)
            output.logprobs += [token_logprobs(logits[row], t, self.request.logprobs) for t, row in pairs]

    def search(self, logits: SequenceOf[NDArray[np.float32]]) -> None:
        """Advance the beams; what has ended is its output when the search is over.

        Args:
            logits: f32 `[vocab]`, of what follows the prompt or each beam.
        """
        assert self.beams is not None
        answers, output = self.beams.advance(logits), self.output
        if answers:
            best, output.beams = answers[0], answers
            output.token_ids, output.writers, output.logprobs = best.token_ids, best.writers, best.logprobs
            output.score, self.sequence.finish_reason = best.score, best.finish_reason

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether rows of its prompt are to give log probabilities."""
        known, asked = self.num_prompt_logprobs, self.request.prompt_logprobs
        return asked is not None and known < self.sequence.prompt_length - 1

    def take_prompt(self, begin: int, logits: NDArray[np.float32]) -> None:
        """Note the log probabilities of the prompt's tokens behind `begin`; f32 `[rows, vocab]`."""
        asked, tokens = self.request.prompt_logprobs, self.sequence.tokens
        if asked is None:
            return
        first = self.num_prompt_logprobs - begin  # a preempted request reads rows again
        for place in range(max(0, first), min(len(logits), self.sequence.prompt_length - 1 - begin)):
            found = token_logprobs(logits[place], tokens[begin + place + 1], asked)
            self.output.prompt_logprobs.append(found)
            self.num_prompt_logprobs += 1

    def count_draft(self, proposed: int, accepted: int) -> None:
        """Count a verified draft of so many tokens, of which the first so many were accepted."""
        self.num_drafts += 1
        self.num_draft_tokens += proposed
        self.accepted_per_pos += [0] * (proposed - len(self.accepted_per_pos))
        for position in range(accepted):
            self.accepted_per_pos[position] += 1

    def take_output(self) -> RequestOutput:
        """What has come since the last call of this."""
        output, self.output = self.output, RequestOutput(self.request.request_id)
        output.finish_reason, output.error = self.sequence.finish_reason, self.error
        output.metrics = self.metrics()
        if self.beams is not None and self.sequence.finished and not output.beams:
            # Aborted before the search was over: each of its answers ends, with nothing in it.
            ended = RequestOutput(output.request_id, finish_reason=output.finish_reason)
            output.beams = [replace(ended) for _ in range(self.sequence.settings.num_return_sequences)]
        for beam in output.beams:
            beam.metrics, beam.prompt_logprobs = output.metrics, output.prompt_logprobs
        return output

    def metrics(self) -> RequestMetrics:
        """Counts so far."""
        whole = self.mode.only_attention and self.attended_tokens >= self.context_tokens
        read, context = self.prompt_reads
        lossy = why_lossy(
            "dense" if whole else self.mode.verify,
            self.request.settings.acceptance_threshold,
            self.prefill if read < context or self.sparse_cached else None,
        )
        return RequestMetrics(
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=sum(self.accepted_per_pos),
            num_accepted_tokens_per_pos=tuple(self.accepted_per_pos),
            attended_tokens=self.attended_tokens,
            context_tokens=self.context_tokens,
            is_lossy=bool(lossy),
            num_cached_tokens=self.num_cached_tokens,
            prefill_density=read / context if context else 1.0,
            num_read_tokens=min(self.sequence.target.length, self.sequence.prompt_length),
        )

    @property
    def sparse_cached(self) -> int:
        """Cached tokens of its prompt that were read sparsely."""
        known = self.num_cached_tokens
        return known if known and self.prefill is not None and not self.prefill.reads_all(known) else 0


def count_pass(
    stats: PassStats, states: SequenceOf[RequestState], reading: SequenceOf[RequestState] = ()
) -> None:
    """Count what a pass read for the requests that it verified, and for those whose prompts it read."""
    of_meters: dict[Meter, list[tuple[float, float]]] = {}
    for state, read in zip(states, stats.attended, strict=False):
        state.attended_tokens += read[0]
        state.context_tokens += read[1]
        of_meters.setdefault(state.meter, []).append(read)
    for meter, attended in of_meters.items():
        meter.count_pass(stats, attended)
    for state, (attended_, context) in zip(reading, stats.prompts[len(states) :], strict=True):
        state.prompt_reads = (state.prompt_reads[0] + attended_, state.prompt_reads[1] + context)
        state.meter.count_prompt(attended_, context)


def warn_of_pass(error: Exception, requests: int) -> None:
    """Say that a pass of several requests failed, which then have one each."""
    _LOG.warning(
        "ovspec: a pass of %d requests failed (%s: %s); each has one alone now",
        requests,
        type(error).__name__,
        error,
    )
