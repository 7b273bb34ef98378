"""Hydra heads as they run: head i drafts behind the last token of the text and i drafted ones."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.clock import microseconds
from ovspec.drafters.draft_tree import DraftTree, depth_of
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import draw
from ovspec.generation.sequence import Sequence


class HydraHeads:
    """Drafts chains and trees, a small pass per level, for several sequences at once.

    Args:
        embedding: tokens i64 `[rows]` to f32 `[rows, hidden size]`.
        heads: as of `HydraParts`.

    Attributes:
        duration: of the last draft's passes, microseconds.
    """

    def __init__(self, embedding: ov.CompiledModel, heads: SequenceOf[ov.CompiledModel]) -> None:
        self._embedding = embedding.create_infer_request()
        self._heads = [head.create_infer_request() for head in heads]
        self.duration = 0.0

    def __len__(self) -> int:
        """How many there are, and so the tokens that a path may have."""
        return len(self._heads)

    def draft(
        self, sequences: SequenceOf[Sequence], counts: SequenceOf[int], given: NDArray[np.float32]
    ) -> list[Proposal]:
        """The drafts of sequences.

        Args:
            sequences: that they continue.
            counts: largest numbers of tokens, at least 1.
            given: f32 `[sequences, heads * 2 * hidden size]`, what their states give to the heads.
        """
        self.duration = 0.0
        drafts = [
            _Draft(sequence, count, len(self), rows)
            for sequence, count, rows in zip(
                sequences, counts, given.reshape(len(sequences), len(self), -1), strict=True
            )
        ]
        growing = drafts
        for level, head in enumerate(self._heads):
            if not growing:
                break
            started = microseconds()
            ends = np.cumsum([len(draft.tokens) for draft in growing])[:-1]
            embedded = self._embedding.infer({0: np.concatenate([draft.tokens for draft in growing])})[0]
            for draft, rows in zip(growing, np.split(embedded, ends), strict=True):
                draft.paths = np.concatenate([draft.paths, rows], 1)
            ours = np.concatenate([np.repeat(d.given[level : level + 1], len(d.tokens), 0) for d in growing])
            logits = head.infer({0: ours, 1: np.concatenate([draft.paths for draft in growing])})[0]
            self.duration += microseconds() - started
            rows_of = zip(growing, np.split(logits, ends), strict=True)
            growing = [draft for draft, rows in rows_of if draft.grow(rows)]
        return [draft.proposal() for draft in drafts]


class _Draft:
    """A chain or a tree that grows by a level per head.

    Args:
        sequence, count: as of `HydraHeads.draft`.
        heads: how many there are.
        given: f32 `[heads, 2 * hidden size]`.

    Attributes:
        given: the same.
        tokens: i64 `[paths]`, the last of every path that the next head continues.
        paths: f32 `[paths, tokens before the last * hidden size]`, the embeddings of their tokens.
    """

    def __init__(self, sequence: Sequence, count: int, heads: int, given: NDArray[np.float32]) -> None:
        depth = int(min(count, depth_of(sequence), heads))
        self._sequence, self._depth = sequence, depth
        is_tree = sequence.settings.branching_factor > 1
        self._tree = DraftTree(sequence, count, depth) if is_tree else None
        self._chain = Proposal()
        self.given = given
        self.tokens = np.array(sequence.tokens[-1:], np.int64)
        self.paths = np.zeros((1, 0), np.float32)

    def grow(self, logits: NDArray[np.float32]) -> bool:
        """Continue the paths by logits f32 `[paths, vocab]`; whether another head is to go on."""
        tree = self._tree
        if tree is None:
            more = draw(self._sequence, self._chain, logits[0])
            self.tokens = np.array(self._chain.tokens[-1:], np.int64)
            return more and len(self._chain.tokens) < self._depth
        places = {node: place for place, node in enumerate(tree.frontier)}
        if not tree.grow(logits):
            return False
        self.paths = self.paths[[places[tree.parents[node]] for node in tree.frontier]]
        self.tokens = tree.rows[0][-len(tree.frontier) :]
        return True

    def proposal(self) -> Proposal:
        """What has been drafted."""
        return self._chain if self._tree is None else self._tree.proposal()
