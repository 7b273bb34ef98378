"""Models whose rotary frequencies change at a length of text, as in Phi-3: a text takes one or the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.tables import Rows


class LongRope:
    """Keeps the cached keys of every sequence to one kind of frequencies.

    A text longer than `limit` takes the long ones for all of its tokens. When one grows past it, what is
    cached of it is computed anew: the output is that of transformers without a cache.

    Args:
        limit: the model's `original_max_position_embeddings`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def outdated(self, rows: Rows) -> NDArray[np.int64]:
        """Tokens of a sequence whose keys have to be computed anew before a pass; it forgets them.

        Returns:
            i64 `[tokens]`, none where they fit.
        """
        sequence, is_long = rows.sequence, max(rows.text_length, rows.context) > self.limit
        fits = sequence.length == 0 or sequence.long_rope == is_long
        tokens = sequence.tokens[: 0 if fits else sequence.length]
        if not fits:
            sequence.rollback(0)
        sequence.long_rope = is_long
        return tokens

    def room(self, length: int) -> int | None:
        """Draft tokens that a pass over a text of `length` may hold, `None` for any number.

        The tokens up to the limit and those past it do not share a pass.
        """
        return self.limit - length if length <= self.limit else None

    @staticmethod
    def remember(batch: Sequence[Rows]) -> None:
        """Keep the tokens of a pass that has run, before its sequences advance."""
        for rows in batch:
            known = rows.sequence.tokens[: rows.sequence.length]
            rows.sequence.tokens = np.concatenate([known, rows.tokens])

    @staticmethod
    def compact(sequence: CachedSequence, past: int, rows: Sequence[int]) -> None:
        """Move the tokens of an accepted tree path as their keys are moved."""
        sequence.tokens = np.concatenate([sequence.tokens[:past], sequence.tokens[past + np.array(rows)]])
