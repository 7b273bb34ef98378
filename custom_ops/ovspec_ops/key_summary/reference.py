"""NumPy reference of KeySummary, in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE, decode_block


def mean_key(block: NDArray[Any], tokens: int, k_size: int) -> NDArray[np.float64]:
    """Mean of the first keys of `block` `[kv_heads, rows of a block, row]` -> `[kv_heads, k_size]`."""
    return np.asarray(decode_block(block, k_size)[:, :tokens].mean(axis=1))


def key_summary(
    key_cache: NDArray[Any],
    summary: NDArray[np.float32],
    past_lens: NDArray[np.int32],
    subsequence_begins: NDArray[np.int32],
    block_indices: NDArray[np.int32],
    block_indices_begins: NDArray[np.int32],
    *,
    k_size: int,
) -> NDArray[np.float64]:
    """`summary` `[blocks, kv_heads, k_size]` after a pass: new means for the blocks that the pass wrote."""
    out = summary.astype(np.float64)
    for s, past in enumerate(past_lens.tolist()):
        total = past + int(subsequence_begins[s + 1] - subsequence_begins[s])
        table = block_indices[block_indices_begins[s] : block_indices_begins[s + 1]].tolist()
        if total == past:
            continue
        for b in range(past // BLOCK_SIZE, (total - 1) // BLOCK_SIZE + 1):
            out[table[b]] = mean_key(key_cache[table[b]], min(BLOCK_SIZE, total - b * BLOCK_SIZE), k_size)
    return out
