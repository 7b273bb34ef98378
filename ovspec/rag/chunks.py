"""A text cut into chunks that overlap."""

from __future__ import annotations

import re

from ovspec.errors import InvalidValueError

DEFAULT_CHUNK_SIZE = 1000
DEFAULT_CHUNK_OVERLAP = 200
# A chunk ends behind the first of these that its second half has.
_ENDS = ("\n\n", "\n", ". ", " ")
_SPACE = re.compile(r"\s")


def check_sizes(chunk_size: int, chunk_overlap: int) -> None:
    """Refuse sizes that `split` can't serve.

    Raises:
        InvalidValueError: a chunk without characters, or more than half of one that the next repeats.
    """
    if chunk_size < 1:
        raise InvalidValueError(f"chunk_size={chunk_size}: expected at least 1 character")
    if not 0 <= chunk_overlap <= chunk_size // 2:
        raise InvalidValueError(
            f"chunk_overlap={chunk_overlap}: expected 0 to {chunk_size // 2}, half of a chunk's characters"
        )


def split(text: str, size: int, overlap: int) -> list[str]:
    """Pieces of `size` characters at most, without spaces at their ends; none is empty.

    A piece ends at a paragraph, a line, a sentence or a word where its second half has such an end. The next
    one begins at a word among its last `overlap` characters.
    """
    pieces, begin = [], 0
    while begin < len(text):
        end = _end(text, begin, size)
        if piece := text[begin:end].strip():
            pieces.append(piece)
        if end == len(text):
            break
        begin = _word(text, max(begin + 1, end - overlap), end)
    return pieces


def _end(text: str, begin: int, size: int) -> int:
    last = begin + size
    if last >= len(text):
        return len(text)
    for mark in _ENDS:
        found = text.rfind(mark, begin + size // 2, last)
        if found > begin:
            return found + len(mark)
    return last


def _word(text: str, begin: int, end: int) -> int:
    """The first place from `begin` on where a word begins; `end` where that is none."""
    if begin >= end or text[begin - 1].isspace():
        return min(begin, end)
    found = _SPACE.search(text, begin, end)
    return found.end() if found else begin
