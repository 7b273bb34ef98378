"""Verification: one pass of the target over last tokens with their drafts, and over chunks of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter
from ovspec.generation.sequence import Sequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows
from ovspec.verify.limits import Limits
from ovspec_models.sparse_verify import SparseVerify
from ovspec_transforms import BOUNDARY_STATES

Draft = tuple[Sequence, SequenceOf[int]]


class Verifier:
    """Runs drafts through the target.

    Args:
        target: the model whose output is generated.
        drafter: it is shown hidden states if it reads them.
    """

    def __init__(self, target: ModelRunner, drafter: Drafter | None = None) -> None:
        self.target = target
        #: Measurements of the last pass, the drafts' sequences first.
        self.stats = target.last_pass
        self._reader = drafter if drafter is not None and drafter.reads_states else None
        # Of every sequence of the last pass: position of its first row, its rows, those before its draft.
        self._rows: list[tuple[int, slice, int]] = []

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
        if self._reader:
            batch = [replace(rows, states=len(rows.tokens)) for rows in batch]
            lengths = [len(draft) for _, draft in drafts] + [0] * len(chunks)
            ends = np.cumsum([len(rows.tokens) for rows in batch]).tolist()
            self._rows = [
                (rows.sequence.length, slice(end - len(rows.tokens), end), len(rows.tokens) - drafted)
                for rows, end, drafted in zip(batch, ends, lengths, strict=True)
            ]
        logits = self.target.forward(batch)
        self.stats = self.target.last_pass
        ends = list(accumulate(rows.sampled for rows in batch))
        return [logits[begin:end] for begin, end in pairwise([0, *ends])]

    def show(self, index: int, sequence: Sequence, nodes: Iterable[int]) -> None:
        """Show the drafter what states the tokens have that the last pass read and accepted.

        Args:
            index: of the sequence among those of the pass, chunks after drafts.
            sequence: that one.
            nodes: accepted tokens of its draft, in their order.
        """
        if self._reader is None:
            return
        begin, rows, before = self._rows[index]
        states: NDArray[np.float32] = self.target.output(BOUNDARY_STATES)[rows]  # type: ignore[assignment]
        kept = [*range(before), *(before + node for node in nodes)]
        self._reader.observe(sequence, begin, states if len(kept) == len(states) else states[kept])

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
