"""Long RoPE: rotary frequencies that change at a length of text, as in Phi-3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.passes.tables import Rows

_RECOMPUTED_ROWS = 512  # per pass


class LongRope:
    """Keeps the cached keys of every sequence consistent: all with short or all with long frequencies.

    A text longer than `limit` uses the long frequencies for all tokens. When a text grows past the limit, its
    keys are computed again, so that the output equals that of transformers without a cache.

    Args:
        limit: the model's `original_max_position_embeddings`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def recompute(self, batch: Sequence[Rows], forward: Callable[[Rows], float]) -> float:
        """Compute keys again whose frequencies change.

        Args:
            batch: rows of the next pass.
            forward: computes rows and returns how long it took.

        Returns:
            What it took in all.
        """
        duration = 0.0
        for rows in batch:
            tokens = self.outdated(rows)
            length = max(rows.text_length, rows.context + len(tokens))
            for begin in range(0, len(tokens), _RECOMPUTED_ROWS):
                part = tokens[begin : begin + _RECOMPUTED_ROWS]
                duration += forward(Rows(rows.sequence, part, sampled=0, text_length=length))
        return duration

    def outdated(self, rows: Rows) -> NDArray[np.int64]:
        """Drop the cached keys of a sequence if its frequencies change; return the tokens to compute again.

        Returns:
            i64 `[tokens]`, empty if the frequencies do not change.
        """
        sequence, is_long = rows.sequence, max(rows.text_length, rows.context) > self.limit
        fits = sequence.length == 0 or sequence.long_rope == is_long
        tokens = sequence.tokens[: 0 if fits else sequence.length]
        if not fits:
            sequence.rollback(0)
        sequence.long_rope = is_long
        return tokens

    def room(self, length: int) -> int | None:
        """Largest number of draft tokens for a text of `length`; `None`: no limit.

        Tokens up to the limit and tokens past it cannot be in one pass.
        """
        return self.limit - length if length <= self.limit else None

    @staticmethod
    def remember(batch: Sequence[Rows]) -> None:
        """Store the tokens of a finished pass; call this before the sequences advance."""
        for rows in batch:
            known = rows.sequence.tokens[: rows.sequence.length]
            rows.sequence.tokens = np.concatenate([known, rows.tokens])

    @staticmethod
    def compact(sequence: CachedSequence, past: int, rows: Sequence[int]) -> None:
        """Move the tokens of an accepted tree path in the same way as their keys."""
        sequence.tokens = np.concatenate([sequence.tokens[:past], sequence.tokens[past + np.array(rows)]])
