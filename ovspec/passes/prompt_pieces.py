"""Rows of a prompt cut into pieces, each with block lists of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ovspec.cache.cache import CachedSequence
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.modes.sparse_prefill import PROMPT_PIECE, SparsePrefill
from ovspec.passes.tables import Rows, is_verification

DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
"""Rows of a pass at most.

Processor time of a prompt, compared with 512 rows: 64 rows 1.06, 128 up to 1.06, 256 up to 1.03, 1,024 and
2,048 the same (`ovspec bench prompt --mode dense,dense:64,dense:1024`). More rows take more memory, and other
requests wait longer for theirs.
"""

Read = tuple[float, float]


def pieces(batch: Sequence[Rows], prefill: SparsePrefill | None, block_size: int) -> list[Rows]:
    """The batch with the rows of prompts cut at every multiple of 128 tokens, as `prefill` reads them.

    The cuts, and so the lists, depend on positions alone, and not on how many rows a pass reads. The final
    piece of a prompt is dense where it is too short to be worth a list.
    """
    if prefill is None or not any(rows.is_prompt for rows in batch):
        return list(batch)
    return [
        piece for rows in batch for piece in (_cut(rows, prefill, block_size) if rows.is_prompt else [rows])
    ]


def _cut(rows: Rows, prefill: SparsePrefill, block_size: int) -> Iterator[Rows]:
    count, past = len(rows.tokens), rows.past
    cuts = [0, *range(PROMPT_PIECE - past % PROMPT_PIECE, count, PROMPT_PIECE), count]
    for begin, end in itertools.pairwise(cuts):
        short = end - begin <= MAX_VERIFY_ROWS
        yield replace(
            piece_of(rows, begin, end),
            budget=-1 if short else prefill.budget_blocks(past + end, block_size),
            coverage=prefill.share,
        )


def piece_of(rows: Rows, begin: int, end: int) -> Rows:
    """Rows `begin` .. `end - 1` of a sequence's rows in a pass."""
    behind, length = len(rows.tokens) - end, end - begin
    return replace(
        rows,
        tokens=rows.tokens[begin:end],
        sampled=_last(rows.sampled, behind, length),
        states=_last(rows.states, behind, length),
        features=None if rows.features is None else rows.features[begin:end],
        offset=rows.offset + begin,
    )


def _last(asked: int, behind: int, length: int) -> int:
    """How many of the last `asked` rows lie in a piece of `length` rows, which `behind` rows follow."""
    return min(max(asked - behind, 0), length)


def prompt_ends(batch: Sequence[Rows]) -> list[tuple[CachedSequence, int]]:
    """The sequences whose prompts the batch reads, and how many tokens each has once it was read."""
    return [(rows.sequence, rows.text_length) for rows in batch if rows.is_prompt]


def verified(batch: Sequence[Rows], parts: Sequence[Rows], read: Iterable[Read]) -> list[Read]:
    """What verification attention read of every sequence; nothing where it reads a prompt."""
    return [
        own[0] if is_verification(rows) else (0.0, 0.0)
        for rows, own in zip(batch, _of_rows(batch, parts, read), strict=True)
    ]


def read_prompts(batch: Sequence[Rows], parts: Sequence[Rows], read: Iterable[Read]) -> list[Read]:
    """What the rows of every prompt read, over its rows; nothing for other sequences."""
    if not any(part.is_prompt for part in parts):
        return [(0.0, 0.0)] * len(batch)
    counted = [
        (attended * len(part.tokens), context * len(part.tokens)) if part.is_prompt else (0.0, 0.0)
        for part, (attended, context) in zip(parts, read, strict=True)
    ]
    return [(sum(a for a, _ in own), sum(c for _, c in own)) for own in _of_rows(batch, parts, counted)]


def _of_rows(batch: Sequence[Rows], parts: Sequence[Rows], values: Iterable[Read]) -> Iterator[list[Read]]:
    """The values of the parts of each rows; parts are in the order of the batch."""
    left = zip(parts, values, strict=True)
    if len(parts) == len(batch):
        yield from ([value] for _, value in left)
        return
    for rows in batch:
        own, read = list[Read](), 0
        while read < len(rows.tokens):
            part, value = next(left)
            own.append(value)
            read += len(part.tokens)
        yield own
