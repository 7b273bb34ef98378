"""A runner whose passes are real and whose acceptance follows a trace."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.bench.acceptance_trace import AcceptanceTrace, Confirmations
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows

# Larger than any logit of a model, and finite.
_CERTAIN = np.float32(1e6)


class TracedRunner(ModelRunner):
    """Runs real passes, then changes the logits so that greedy acceptance follows a trace.

    For batches of one sequence. The logits of a pass with one sampled row are not changed.
    """

    _drafts: Iterator[tuple[int, int]] | None = None
    _confirmations: Confirmations | None = None

    def replay(self, trace: AcceptanceTrace | None, commits: bool) -> None:
        """Start to follow a trace, or stop.

        Args:
            trace: decides about the passes that follow.
            commits: whether dense passes confirm provisional tokens; if not, they verify drafts.
        """
        self._drafts = trace.drafts() if trace else None
        self._confirmations = Confirmations(trace) if trace and commits else None

    def forward(self, batch: SequenceOf[Rows]) -> NDArray[np.float32]:
        """As `ModelRunner.forward`."""
        logits = super().forward(batch)
        drafted = batch[0].sampled - 1
        if self._drafts is None or drafted < 1:
            return logits
        draft = batch[0].tokens[-drafted:]
        if self._confirmations is not None and batch[0].is_dense:
            accepted = self._confirmations.take(drafted)
        else:
            accepted = min(next(self._drafts)[1], drafted)
        rows = np.arange(accepted)
        logits[rows, draft[:accepted]] = _CERTAIN
        if accepted < drafted:
            logits[accepted, (draft[accepted] + 1) % logits.shape[1]] = _CERTAIN
        return logits


class TraceDrafter(Drafter):
    """Proposes as many random tokens as a trace says, at the cost of a lookup.

    Args:
        trace: number of tokens per draft.
        vocab_size: token ids are below this.
    """

    name = "trace"

    def __init__(self, trace: AcceptanceTrace, vocab_size: int) -> None:
        self._drafts = trace.drafts()
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(0)

    def propose(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> list[Proposal]:
        """Draft for one sequence."""
        proposed, _ = next(self._drafts)
        return [
            Proposal(self._rng.integers(0, self._vocab_size, min(proposed, count)).tolist())
            for count in counts
        ]
