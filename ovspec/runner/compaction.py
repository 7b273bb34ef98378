"""Compaction: moves the cache rows of an accepted tree path to consecutive slots."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence, CacheTensor, KVCache
from ovspec.operations.tree_limits import MOVED, why_rows_stay
from ovspec_ops.key_summary.reference import summarise


def compact(
    cache: KVCache, sequence: CachedSequence, past: int, rows: Sequence[int], block_size: int
) -> None:
    """Keep the rows of an accepted path after the first `past` tokens, and drop the others.

    Keys and values move from slot `past + rows[i]` to slot `past + i` in every layer; summaries of blocks
    that changed are recomputed. The new length of the sequence is `past + len(rows)`.

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
        end = past + len(rows)
        changed = range((past + first) // block_size, -(-end // block_size))
        counts = {sequence.table[number]: min(block_size, end - number * block_size) for number in changed}
        for spec in cache.specs:
            if spec.name.startswith("key_summary."):
                _summarise(cache, spec, counts)
    sequence.rollback(past + len(rows))


def _summarise(cache: KVCache, spec: CacheTensor, counts: Mapping[np.int32, int]) -> None:
    """Summaries of blocks with so many tokens."""
    tensor = cache.tensor(spec.name.replace("key_summary.", "key_cache."))
    keys = tensor.data.view(np.uint16) if tensor.element_type == ov.Type.bf16 else tensor.data
    summary: NDArray[np.uint8] = cache.tensor(spec.name).data
    size = keys.shape[-1] - (8 if keys.dtype == np.uint8 else 0)
    for block, tokens in counts.items():
        summary[block] = summarise(keys[block], tokens, size)
