"""Hydra heads as they run: head i drafts behind the last token of the text and i drafted ones."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.clock import microseconds
from ovspec.drafters.draft_paths import DraftPaths
from ovspec.drafters.drafter import Proposal
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
            DraftPaths(sequence, count, len(self)) for sequence, count in zip(sequences, counts, strict=True)
        ]
        growing = list(zip(drafts, given.reshape(len(sequences), len(self), -1), strict=True))
        for level, head in enumerate(self._heads):
            if not growing:
                break
            started = microseconds()
            counts_of_paths = [len(draft.tokens) for draft, _ in growing]
            ends = np.cumsum(counts_of_paths)[:-1]
            embedded = self._embedding.infer({0: np.concatenate([draft.tokens for draft, _ in growing])})[0]
            for (draft, _), rows in zip(growing, np.split(embedded, ends), strict=True):
                draft.carried = np.concatenate([draft.carried, rows], 1)
            ours = np.repeat(np.stack([rows[level] for _, rows in growing]), counts_of_paths, 0)
            logits = head.infer({0: ours, 1: np.concatenate([draft.carried for draft, _ in growing])})[0]
            self.duration += microseconds() - started
            rows_of = zip(growing, np.split(logits, ends), strict=True)
            growing = [one for one, rows in rows_of if one[0].grow(rows)]
        return [draft.proposal() for draft in drafts]
