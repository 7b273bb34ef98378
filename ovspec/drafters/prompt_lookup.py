"""`prompt_lookup`: what followed the last tokens when they were seen before."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafter import Drafter, Proposal
from ovspec.sequence import Sequence

DEFAULT_MAX_NGRAM_SIZE = 3


class PromptLookupDrafter(Drafter):
    """Looks the last tokens up in prompt and output, the longest n-gram first, and copies on.

    Args:
        max_ngram_size: tokens that are looked up at first; then one fewer, down to one. A call's own
            `max_ngram_size` goes before it.
    """

    name = "prompt_lookup"
    needs_no_model = True

    def __init__(self, max_ngram_size: int = DEFAULT_MAX_NGRAM_SIZE) -> None:
        self._max_ngram_size = max_ngram_size

    def propose(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> list[Proposal]:
        """What followed the most recent earlier occurrence."""
        return [
            Proposal(self._lookup(sequence, count)) if count > 0 else Proposal()
            for sequence, count in zip(sequences, counts, strict=True)
        ]

    def _lookup(self, sequence: Sequence, k: int) -> list[int]:
        tokens = sequence.draft_states.setdefault(self.name, TokenArray()).read(sequence)
        return lookup(tokens, sequence.settings.max_ngram_size or self._max_ngram_size, k)


def lookup(tokens: NDArray[np.int64], max_ngram_size: int, k: int) -> list[int]:
    """The `k` tokens that followed the most recent earlier occurrence of the last n tokens, if there is one.

    n goes from `max_ngram_size` down to 1. Past the end of the text it goes on with what it has just copied,
    as in LZ77, so that a loop is drafted to any length.
    """
    for size in range(min(max_ngram_size, len(tokens) - 1), 0, -1):
        # An occurrence ends before the last token.
        ends = np.flatnonzero(tokens[size - 1 : -1] == tokens[-1]) + size
        for back in range(2, size + 1):
            ends = ends[tokens[ends - back] == tokens[-back]]
        if ends.size:
            start = int(ends[-1])
            found: list[int] = tokens[start + np.arange(k) % (len(tokens) - start)].tolist()
            return found
    return []


class TokenArray:
    """A sequence's tokens as an array, copied as they come."""

    __slots__ = ("_array", "_length")

    def __init__(self) -> None:
        self._array = np.empty(1024, np.int64)
        self._length = 0

    def read(self, sequence: Sequence) -> NDArray[np.int64]:
        """All tokens, i64 `[tokens]`, valid until the next call; provisional ones may change."""
        tokens = sequence.tokens
        if len(tokens) > self._array.size:
            self._array = np.resize(self._array, 2 * len(tokens))
        start = min(self._length, sequence.confirmed)
        self._array[start : len(tokens)] = tokens[start:]
        self._length = sequence.confirmed
        return self._array[: len(tokens)]
