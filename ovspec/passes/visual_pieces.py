"""Rows of pictures that are seen as a whole: each is a piece of its own, which sees all of its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ovspec.passes.prompt_pieces import piece_of
from ovspec.passes.tables import Rows


def visual_pieces(batch: Sequence[Rows]) -> list[Rows]:
    """The batch with a piece for each row of such a picture, and one for the rows between two of them.

    All keys of a pass are written before it reads, so that a row may see those behind it. It sees them all,
    in sparse prompts too.
    """
    return [piece for rows in batch for piece in _pieces(rows)]


def _pieces(rows: Rows) -> Iterator[Rows]:
    visual, past, begin = rows.sequence.visual, rows.past, 0
    for first, last in () if visual is None else visual.runs:
        low, high = (min(max(place - past, begin), len(rows.tokens)) for place in (first, last))
        if low == high:
            continue
        if low > begin:
            yield piece_of(rows, begin, low)
        for row in range(low, high):
            yield replace(piece_of(rows, row, row + 1), seen=last, budget=-1)
        begin = high
    if begin == 0:
        yield rows
    elif begin < len(rows.tokens):
        yield piece_of(rows, begin, len(rows.tokens))
