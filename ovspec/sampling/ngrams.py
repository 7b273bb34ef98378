"""N-grams that may come only once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Ngrams:
    """The n-grams of one sequence, its prompt included.

    Args:
        size: n, at least 1.
        prompt: token ids.
    """

    def __init__(self, size: int, prompt: Sequence[int] | NDArray[np.integer]) -> None:
        self._size = size
        self._text = np.array(prompt, np.int64)
        self._length = self._text.size

    def fork(self) -> Ngrams:
        """The same sequence, which grows apart."""
        return Ngrams(self._size, self._text[: self._length])

    def extend(self, tokens: Sequence[int]) -> None:
        """The sequence has these tokens too."""
        end = self._length + len(tokens)
        if end > self._text.size:
            self._text = np.concatenate([self._text, np.zeros(end, np.int64)])
        self._text[self._length : end] = tokens
        self._length = end

    def rollback(self, count: int) -> None:
        """The sequence has lost its last `count` tokens."""
        self._length -= count

    def repeated(self, drafted: Sequence[int] = ()) -> NDArray[np.int64]:
        """Tokens that would repeat an n-gram behind the sequence and `drafted`, i64; some more than once."""
        text = self._text[: self._length]
        if len(drafted):
            text = np.concatenate([text, np.array(drafted, np.int64)])
        before = self._size - 1
        if text.size <= before:
            return text[:0]
        if not before:
            return text
        # Places behind which the last tokens of the text stand, compared from the last one on.
        ends = np.flatnonzero(text[before - 1 : -1] == text[-1]) + before
        for back in range(2, before + 1):
            if not ends.size:
                break
            ends = ends[text[ends - back] == text[-back]]
        return text[ends]
