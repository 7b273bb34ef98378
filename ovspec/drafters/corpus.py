"""A reference corpus with a suffix array that finds continuations of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino_genai
from numpy.typing import NDArray

from ovspec.drafters.suffix_automaton import MAX_DEPTH
from ovspec_models.folder.jsonl import read_utf8

# Occurrences that are counted; more would not change the result much.
_MAX_OCCURRENCES = 1024


def corpus_text(path: Path) -> str:
    """The text of a corpus.

    Raises:
        ValueError: it can't be read, or is empty.
    """
    text = read_utf8(f"corpus {path}", lambda: path.read_text(encoding="utf-8"))
    if not text.strip():
        raise ValueError(f"corpus {path} is empty; give a text that resembles the outputs")
    return text


class Corpus:
    """Tokens of a text, searched for suffixes of at most `MAX_DEPTH` tokens.

    Args:
        tokens: i64 `[tokens]`.
    """

    def __init__(self, tokens: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._array = suffix_array(tokens, MAX_DEPTH)

    @classmethod
    def read(cls, path: Path, tokenizer: openvino_genai.Tokenizer) -> Corpus:
        """Tokenize a text file.

        Raises:
            ValueError: it can't be read, or is empty.
        """
        text = corpus_text(path)
        tokens = np.array(tokenizer.encode(text, add_special_tokens=False).input_ids.data, np.int64)
        return cls(tokens.reshape(-1))

    def match(self, context: Sequence[int]) -> tuple[NDArray[np.int64], int]:
        """Where the longest suffix of `context` that occurs is followed by a token.

        Returns:
            Positions of those following tokens, i64, and the length of the suffix; none and 0 if not even
            the last token occurs.
        """
        tail = np.array(context[-MAX_DEPTH:], np.int64)
        found, low, high = self._array[:0], 0, len(tail)
        # If a suffix occurs, every shorter suffix occurs too.
        while low < high:
            length = (low + high + 1) // 2
            starts = self._occurrences(tail[len(tail) - length :].tolist())
            if starts.size:
                found, low = starts + length, length
            else:
                high = length - 1
        return found, low

    def follow(self, positions: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], float] | None:
        """The most frequent token at `positions`, where it is followed by another, and its share, if any."""
        if not len(positions):
            return None
        tokens, counts = np.unique(self._tokens[positions], return_counts=True)
        at = int(counts.argmax())
        after = positions[self._tokens[positions] == tokens[at]] + 1
        return int(tokens[at]), after[after < len(self._tokens)], float(counts[at] / positions.size)

    def _occurrences(self, pattern: list[int]) -> NDArray[np.int64]:
        """Starts of the occurrences of a pattern that are followed by a token."""
        low = self._bound(pattern, upper=False)
        high = min(self._bound(pattern, upper=True), low + _MAX_OCCURRENCES)
        starts = self._array[low:high]
        return starts[starts + len(pattern) < len(self._tokens)]

    def _bound(self, pattern: list[int], upper: bool) -> int:
        """First index in the array whose suffix is >= the pattern; with `upper`, > the pattern."""
        low, high = 0, len(self._array)
        while low < high:
            middle = (low + high) // 2
            start = int(self._array[middle])
            head = self._tokens[start : start + len(pattern)].tolist()
            if head < pattern or (upper and head == pattern):
                low = middle + 1
            else:
                high = middle
        return low


def suffix_array(tokens: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Starts of all suffixes, i64 `[tokens]`, ordered by their first `depth` tokens at least.

    Prefix doubling: pairs of ranks by n tokens give the order by 2n tokens.
    """
    rank = np.unique(tokens, return_inverse=True)[1].reshape(-1).astype(np.int64)
    order, length = np.argsort(rank, kind="stable"), 1
    while length < depth:
        second = np.zeros_like(rank)
        second[:-length] = rank[length:] + 1
        pairs = rank * (len(rank) + 1) + second
        order = np.argsort(pairs, kind="stable")
        ordered = pairs[order]
        rank[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
        length *= 2
    return order
