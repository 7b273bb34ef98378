"""Speculative decoding, step by step: draft, verify, accept, roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray
from openvino_genai import GenerationFinishReason

from ovspec.acceptance import Accepted, greedy_accept, speculative_sample
from ovspec.drafter import AssistantDrafter, Proposal
from ovspec.metrics import RawPerfMetrics, microseconds
from ovspec.model_runner import ModelRunner
from ovspec.sequence import Sequence
from ovspec.tables import Rows
from ovspec.verify_config import SparseVerify, Verify

# Called with a sequence and its new tokens; returns whether generation goes on.
TokenCallback = Callable[[Sequence, list[int]], bool]


class Engine:
    """Generates several sequences together with a target model and, if given, a drafter.

    Args:
        target: the model whose distribution counts.
        drafter: proposes tokens; without one every step is plain decoding.
        verify: dense, or sparse with a budget.
        prefill_chunk: rows per pass while a prompt is read.
    """

    def __init__(
        self, target: ModelRunner, drafter: AssistantDrafter | None, verify: Verify, prefill_chunk: int
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._verify_config = verify
        self._prefill_chunk = prefill_chunk
        self._metrics = RawPerfMetrics()

    def run(
        self,
        sequences: SequenceOf[Sequence],
        on_tokens: TokenCallback,
        metrics: RawPerfMetrics,
        started: float | None = None,
    ) -> None:
        """Generate until every sequence has finished or the callback says stop.

        Args:
            sequences: what to generate.
            on_tokens: gets every sequence's new tokens.
            metrics: gets what was measured.
            started: when the user's call began (`microseconds`), from where the first token counts.
        """
        self._metrics = metrics
        started = microseconds() if started is None else started
        for sequence in sequences:
            token = self._prefill(sequence)
            metrics.m_times_to_first_token.append(microseconds() - started)
            if not on_tokens(sequence, sequence.append([token])):
                return
        while running := [sequence for sequence in sequences if not sequence.finished]:
            if not self._step(running, on_tokens):
                return

    def release(self, sequence: Sequence) -> None:
        """Give the sequence's share of both caches back."""
        self._target.release(sequence.target)
        if self._drafter:
            self._drafter.release(sequence)

    def _prefill(self, sequence: Sequence) -> int:
        logits = self._target.prefill(
            sequence.target, sequence.uncached(sequence.target), self._prefill_chunk
        )
        self._metrics.prefill_durations.append(self._target.last_pass.duration)
        self._metrics.inference_durations.append(self._target.last_pass.duration)
        return self._accept(sequence, Proposal(), logits).next_token

    def _step(self, sequences: SequenceOf[Sequence], on_tokens: TokenCallback) -> bool:
        started = microseconds()
        proposals = self._draft(sequences)
        drafted = self._drafter.last_duration if self._drafter else 0.0
        logits = self._verify(sequences, proposals)
        verified = self._target.last_pass.duration
        goes_on, emitted, sampling = True, 0, microseconds()
        for sequence, proposal, rows in zip(sequences, proposals, logits, strict=True):
            accepted = self._accept(sequence, proposal, rows)
            self._metrics.count_draft(len(proposal.tokens), accepted.n)
            tokens = sequence.append([*proposal.tokens[: accepted.n], accepted.next_token])
            emitted += len(tokens)
            goes_on &= on_tokens(sequence, tokens)
        ended = microseconds()
        self._metrics.sampling_durations.append(ended - sampling)
        step = ended - started
        self._metrics.host_durations.append(step - drafted - verified)
        self._metrics.inference_durations.append(drafted + verified)
        self._metrics.m_durations.extend([step * len(sequences) / emitted] * emitted)
        return goes_on

    def _draft(self, sequences: SequenceOf[Sequence]) -> list[Proposal]:
        if self._drafter is None:
            return [Proposal() for _ in sequences]
        proposals = self._drafter.propose(sequences)
        self._metrics.draft_durations.append(self._drafter.last_duration)
        return proposals

    def _verify(
        self, sequences: SequenceOf[Sequence], proposals: SequenceOf[Proposal]
    ) -> list[NDArray[np.float32]]:
        """One target pass over every sequence's last token and draft; logits `[k + 1, vocab]` each."""
        batch = []
        for sequence, proposal in zip(sequences, proposals, strict=True):
            rows = np.array([sequence.tokens[-1], *proposal.tokens], np.int64)
            context = sequence.target.length + len(rows)
            batch.append(Rows(sequence.target, rows, sampled=len(rows), budget=self._budget(context)))
        logits = self._target.forward(batch)
        stats = self._target.last_pass
        self._metrics.verify_durations.append(stats.duration)
        self._metrics.attended_tokens += stats.attended_tokens
        self._metrics.context_tokens += stats.context_tokens
        ends = np.cumsum([len(rows.tokens) for rows in batch])
        return np.split(logits, ends[:-1])

    def _budget(self, context: int) -> int:
        if isinstance(self._verify_config, SparseVerify):
            return self._verify_config.budget_blocks(context, self._target.block_size)
        return -1

    @staticmethod
    def _accept(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> Accepted:
        processor, x = sequence.processor, proposal.tokens
        if sequence.settings.sampling.do_sample:
            return speculative_sample(
                x, proposal.q, lambda i: processor.distribution(logits[i], x[:i]), sequence.streams
            )
        choices: Iterator[int] = (processor.argmax(row, x[:i]) for i, row in enumerate(logits))
        return greedy_accept(x, choices)


def stop(sequences: SequenceOf[Sequence], reason: GenerationFinishReason) -> None:
    """End what still runs."""
    for sequence in sequences:
        if not sequence.finished:
            sequence.finish_reason = reason
