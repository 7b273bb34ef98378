"""`prompt_lookup`: what followed the last tokens when they were seen before."""

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
        text = sequence.draft_states.setdefault(self.name, TokenText()).read(sequence)
        return lookup(text, sequence.settings.max_ngram_size or self._max_ngram_size, k)


def lookup(text: bytes | bytearray, max_ngram_size: int, k: int) -> list[int]:
    """The `k` tokens that followed the most recent earlier occurrence of the last n tokens, if there is one.

    n is the largest up to `max_ngram_size` that occurred. Past the end of the text it goes on with what it
    has just copied, as in LZ77, so that a loop is drafted to any length.

    Args:
        text: the tokens, from `as_text`.
        max_ngram_size: the largest n.
        k: tokens that are wanted.
    """
    length, start = len(text), -1
    # An occurrence ends before the last token; that of a longer n-gram is no later than that of a shorter.
    end = length - _WIDTH
    for size in range(_WIDTH, min(_WIDTH * max_ngram_size, end) + 1, _WIDTH):
        at = _last_occurrence(text, text[length - size :], end)
        if at < 0:
            break
        start = end = at + size
    if start < 0:
        return []
    found = array(_CODE, bytes(text[start : start + _WIDTH * k])).tolist()
    while len(found) < k:
        found += found[: k - len(found)]
    return found


def as_text(tokens: Iterable[int]) -> bytes:
    """Tokens as bytes, in which C searches faster than NumPy is called."""
    return array(_CODE, tokens).tobytes()


def _last_occurrence(text: bytes | bytearray, pattern: bytes | bytearray, end: int) -> int:
    """Where the last occurrence begins that ends no later than `end`; -1 without one."""
    while (at := text.rfind(pattern, 0, end)) % _WIDTH and at >= 0:
        # One that begins inside of a token.
        end = at + len(pattern) - 1
    return at


class TokenText:
    """A sequence's tokens as bytes, copied as they come."""

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
