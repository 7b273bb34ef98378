"""Compaction: moves the cache rows of an accepted tree path to consecutive slots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ovspec.cache.cache import CachedSequence, KVCache
from ovspec.operations.tree_limits import MOVED, why_rows_stay


def compact(
    cache: KVCache, sequence: CachedSequence, past: int, rows: Sequence[int], block_size: int
) -> None:
    """Keep the rows of an accepted path after the first `past` tokens, and drop the others.

    Keys and values move from slot `past + rows[i]` to slot `past + i` in every layer. The new length of the
    sequence is `past + len(rows)`.

    Args:
        sequence: the sequence, after the pass that verified the tree.
        past: its length before that pass.
        rows: ascending rows of that pass.

    Raises:
        ValueError: rows that are not a path of the pass, or a path with gaps in a cache whose tokens cannot
            be moved one by one: u8 keys by channel share their scales within a block.
    """
    last = sequence.length - past - 1
    if any(a >= b for a, b in itertools.pairwise(rows)) or (rows and (rows[0] < 0 or rows[-1] > last)):
        raise ValueError(f"rows={list(rows)}: expected ascending rows out of 0 to {last}")
    first = next((i for i, row in enumerate(rows) if row != i), len(rows))
    if first < len(rows):
        if reason := why_rows_stay(cache, block_size):
            raise ValueError(reason)
        slots = past + np.array([rows[first:], range(first, len(rows))], np.int64)
        blocks, places = sequence.table[slots // block_size], slots % block_size
        for spec in cache.specs:
            if spec.name.startswith(MOVED):
                cache.move(spec.name, blocks, places)
        sequence.summarised = min(sequence.summarised, past + first)
    sequence.rollback(past + len(rows))
