"""`prompt_lookup`: proposes what followed the last tokens at their previous occurrence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence

DEFAULT_MAX_NGRAM_SIZE = 3
_CODE = "i"
_WIDTH = array(_CODE).itemsize


class PromptLookupDrafter(Drafter):
    """Looks up the last tokens in prompt and output, longest n-gram first, and copies what followed.

    Args:
        max_ngram_size: length of the longest n-gram; shorter ones follow, down to one token. The
            `max_ngram_size` of a call has precedence.
    """

    name = "prompt_lookup"
    looks_up, has_model = True, False
    why_no_trees = "it gives no probabilities"

    def __init__(self, max_ngram_size: int = DEFAULT_MAX_NGRAM_SIZE) -> None:
        self._max_ngram_size = max_ngram_size

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        return {i: self._lookup(sequences[i], k) for i, k in enumerate(counts) if k > 0}

    def _lookup(self, sequence: Sequence, k: int) -> Proposal:
        text = sequence.draft_states.setdefault(self.name, TokenText()).read(sequence)
        draft, match = lookup(text, sequence.settings.max_ngram_size or self._max_ngram_size, k)
        return Proposal(draft, match=match)


def lookup(text: bytes | bytearray, max_ngram_size: int, k: int) -> tuple[list[int], int]:
    """The `k` tokens that followed the most recent earlier occurrence of the last n tokens, if any; and n.

    n is the largest number up to `max_ngram_size` for which there is an occurrence. At the end of the text,
    copying continues with the tokens just copied, as in LZ77, so that a loop is drafted to any length.

    Args:
        text: the tokens, from `as_text`.
        max_ngram_size: the largest n.
        k: tokens that are wanted.
    """
    length, start, match = len(text), -1, 0
    # An occurrence must end before the last token. A longer n-gram occurs no later than a shorter one.
    end = length - _WIDTH
    for size in range(_WIDTH, min(_WIDTH * max_ngram_size, end) + 1, _WIDTH):
        at = _last_occurrence(text, text[length - size :], end)
        if at < 0:
            break
        start = end = at + size
        match = size // _WIDTH
    if start < 0:
        return [], 0
    found = array(_CODE, bytes(text[start : start + _WIDTH * k])).tolist()
    while len(found) < k:
        found += found[: k - len(found)]
    return found, match


def as_text(tokens: Iterable[int]) -> bytes:
    """Tokens as bytes: `bytes.rfind` is faster than one NumPy call."""
    return array(_CODE, tokens).tobytes()


def _last_occurrence(text: bytes | bytearray, pattern: bytes | bytearray, end: int) -> int:
    """Start of the last occurrence that ends at or before `end`; -1 if there is none."""
    while (at := text.rfind(pattern, 0, end)) % _WIDTH and at >= 0:
        # A match that does not begin at a token boundary.
        end = at + len(pattern) - 1
    return at


class TokenText:
    """The tokens of a sequence as bytes, extended as tokens are added."""

    __slots__ = ("_length", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._length = 0

    def read(self, sequence: Sequence) -> bytearray:
        """All tokens, valid until the next call; provisional ones may change."""
        start = min(self._length, sequence.confirmed)
        self._text[_WIDTH * start :] = as_text(sequence.tokens[start:])
        self._length = sequence.confirmed
        return self._text
