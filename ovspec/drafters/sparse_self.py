"""`sparse_self`: the target itself drafts with a small budget; no second model."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.drawing import draw
from ovspec.generation.sequence import Sequence
from ovspec.modes.row_limits import DENSE
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify


class SparseSelfDrafter(Drafter):
    """Drafts with the target, which reads few blocks of the context or few experts.

    The keys and values of a draft are in the target's own cache until the verification pass, which begins at
    the same row, overwrites them.

    Where a drafting pass would read everything it costs what it saves: nothing is drafted.

    Args:
        target: the target, whose graph must be able to limit what `sparse` limits.
        sparse: what a drafting pass may read.
    """

    name = "sparse_self"

    def __init__(self, target: ModelRunner, sparse: SparseVerify | None) -> None:
        self._target = target
        self._sparse = sparse

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """One token of each sequence per pass."""
        drafting = [
            index for index, count in enumerate(counts) if count > 0 and self.would_draft(sequences[index])
        ]
        proposals = {index: Proposal() for index in drafting}
        for index in drafting:
            sequences[index].target.keep_states(sequences[index].target.length)
        try:
            while drafting:
                batch = [self._rows(sequences[index], proposals[index]) for index in drafting]
                result = self._target.forward(batch)
                self.last_duration += result.duration
                still = []
                for index, row in zip(drafting, result.logits, strict=True):
                    confident = draw(sequences[index], proposals[index], row)
                    if confident and len(proposals[index].tokens) < counts[index]:
                        still.append(index)
                drafting = still
        finally:
            for sequence in sequences:
                sequence.target.rollback(min(sequence.target.length, len(sequence.tokens) - 1))
                sequence.target.keep_states(None)
        return proposals

    def _rows(self, sequence: Sequence, proposal: Proposal) -> Rows:
        token = proposal.tokens[-1] if proposal.tokens else sequence.tokens[-1]
        context = sequence.target.length + 1
        limits = self._target.limits(self._sparse, context)
        return Rows(sequence.target, np.array([token], np.int64), **limits.rows)

    def would_draft(self, sequence: Sequence) -> bool:
        """Whether a drafting pass is cheaper than one of the target: it leaves something out."""
        return self._target.limits(self._sparse, sequence.target.length + 1) != DENSE
