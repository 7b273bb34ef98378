"""The assistant: a smaller model that proposes what the target verifies."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ovspec.model_runner import ModelRunner
from ovspec.sampling import Distribution
from ovspec.sequence import Sequence
from ovspec.tables import Rows


@dataclass(slots=True)
class Proposal:
    """Draft tokens x_1 .. x_k of one sequence, and q_1 .. q_k that they were drawn from.

    `q` stays empty under greedy decoding, whose acceptance does not look at it.
    """

    tokens: list[int] = field(default_factory=list)
    q: list[Distribution] = field(default_factory=list)


class AssistantDrafter:
    """Drafts with an assistant model, for several sequences at once.

    Args:
        runner: the draft model.
        vocab_size: of the target. Where one of the two models has padded its vocabulary further, the ids
            that only one of them has do not exist.
        prefill_chunk: rows per pass while it reads a prompt.
        positions: tokens that the draft model can see; past them it proposes nothing.
    """

    def __init__(
        self, runner: ModelRunner, vocab_size: int, prefill_chunk: int, positions: int | None = None
    ) -> None:
        self.runner = runner
        self.last_duration = 0.0
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk
        self._positions = math.inf if positions is None else positions

    def propose(self, sequences: SequenceOf[Sequence]) -> list[Proposal]:
        """Draft for every sequence, as many tokens as its settings and its limit allow."""
        self.last_duration = 0.0
        proposals = [Proposal() for _ in sequences]
        lengths = [
            min(s.settings.num_assistant_tokens, s.remaining - 1, self._positions - len(s.tokens))
            for s in sequences
        ]
        drafting = [index for index, length in enumerate(lengths) if length > 0]
        for index in drafting:
            self._catch_up(sequences[index])
        while drafting:
            logits = self._forward([(sequences[index], proposals[index].tokens) for index in drafting])
            still = []
            for index, row in zip(drafting, logits, strict=True):
                confident = self._extend(sequences[index], proposals[index], row)
                if confident and len(proposals[index].tokens) < lengths[index]:
                    still.append(index)
            drafting = still
        return proposals

    def release(self, sequence: Sequence) -> None:
        """Give the sequence's share of the draft model's cache back."""
        self.runner.release(sequence.draft)

    def _catch_up(self, sequence: Sequence) -> None:
        """Read what is not cached, all but the last token, which the first drafting pass takes."""
        missing = sequence.uncached(sequence.draft)[:-1]
        if len(missing) > 1:
            self.runner.prefill(sequence.draft, missing, self._prefill_chunk)
            self.last_duration += self.runner.last_pass.duration

    def _forward(self, drafts: SequenceOf[tuple[Sequence, list[int]]]) -> NDArray[np.float32]:
        batch = []
        for sequence, drafted in drafts:
            context = sequence.tokens[sequence.draft.length :]
            done = max(0, sequence.draft.length - len(sequence.tokens))
            batch.append(Rows(sequence.draft, np.array(context + drafted[done:], np.int64)))
        logits = self.runner.forward(batch)
        self.last_duration += self.runner.last_pass.duration
        missing = self._vocab_size - logits.shape[1]
        if missing > 0:
            return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
        return logits[:, : self._vocab_size]

    @staticmethod
    def _extend(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> bool:
        """Draw the next draft token; whether the drafter is confident enough to go on after it.

        The token that falls below the threshold is still proposed. Dropping it would make the
        proposals depend on what was drawn, and sampling inexact.
        """
        settings, drafted = sequence.settings, proposal.tokens
        if settings.sampling.do_sample:
            q = sequence.processor.distribution(logits, drafted)
            token = q.sample(sequence.streams.draft.random())
            proposal.q.append(q)
        else:
            token = sequence.processor.argmax(logits, drafted)
        drafted.append(token)
        threshold = settings.assistant_confidence_threshold
        return threshold == 0.0 or _probability(logits, token) >= threshold


def _probability(logits: NDArray[np.float32], token: int) -> float:
    return float(1.0 / np.exp(logits - logits[token], dtype=np.float64).sum())
