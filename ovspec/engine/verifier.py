"""Verification: one pass of the target over last tokens with their drafts, and over chunks of prompts."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.generation.sequence import Sequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.pass_stats import PassStats
from ovspec.runtime.tables import Rows
from ovspec.verify.limits import Limits
from ovspec.verify.verify_config import SparseVerify

Draft = tuple[Sequence, SequenceOf[int]]


class Verifier:
    """Runs drafts through the target.

    Args:
        target: the model whose output is generated.
    """

    def __init__(self, target: ModelRunner) -> None:
        self.target = target

    @property
    def stats(self) -> PassStats:
        """Measurements of the last pass, the drafts' sequences first."""
        return self.target.last_pass

    def verify(
        self,
        drafts: SequenceOf[Draft],
        limits: SequenceOf[Limits],
        trees: SequenceOf[SequenceOf[int] | None] | None = None,
        chunks: SequenceOf[Rows] = (),
    ) -> list[NDArray[np.float32]]:
        """Logits `[k + 1, vocab]` of every sequence, valid until the next pass; row i follows x_i.

        Args:
            drafts: sequences, each with its draft. The last token of a sequence (in a chain, the last few) is
                not in the cache yet.
            limits: what each sequence may read, from `limits`.
            trees: the parents of each draft's tokens, `None` for a chain; without it all are chains.
            chunks: rows of prompts that are read in the same pass; their logits follow.
        """
        batch = []
        parents_of = trees or [None] * len(drafts)
        for (sequence, draft), limit, parents in zip(drafts, limits, parents_of, strict=True):
            tokens = np.array([*sequence.tokens[sequence.target.length :], *draft], np.int64)
            # Row 0 is the last token of the sequence, the parent of the roots of the tree.
            tree = None if parents is None else np.array([-1, *(parent + 1 for parent in parents)], np.int32)
            batch.append(Rows(sequence.target, tokens, len(draft) + 1, parents=tree, **limit.rows))
        batch += chunks
        logits = self.target.forward(batch)
        ends = np.cumsum([rows.sampled for rows in batch])
        return np.split(logits, ends[:-1])

    def keep(self, sequence: Sequence, nodes: SequenceOf[int]) -> None:
        """Keep only the accepted path of the last pass's tree in the cache, after the sequence's tokens."""
        past = len(sequence.tokens) - 1
        self.target.compact(sequence.target, past, [0, *(node + 1 for node in nodes)])

    def limits(self, sparse: SparseVerify | None, context: int, scale: float | None = None) -> Limits:
        """What a pass may read.

        Args:
            sparse: the settings; `None` makes the pass dense.
            context: tokens that its last row sees.
            scale: multiple of attention's configured budget, `math.inf` for a dense pass.
        """
        return Limits.of(sparse, context, self.target.block_size, 1.0 if scale is None else scale)
