"""NumPy reference of KeySummary, in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE, decode_block


def summarise(block: NDArray[Any], tokens: int, k_size: int, summary: str) -> NDArray[np.float64]:
    """Summary of the first keys of `block` `[kv_heads, rows of a block, row]`.

    Returns `[kv_heads, k_size]`, the mean, or `[kv_heads, 2 * k_size]`, minima, then maxima.
    """
    keys = decode_block(block, k_size)[:, :tokens]
    if summary == "mean":
        return np.asarray(keys.mean(axis=1))
    return np.concatenate([keys.min(axis=1), keys.max(axis=1)], axis=-1)


def key_summary(
    key_cache: NDArray[Any],
    key_summary: NDArray[np.float32],
    past_lens: NDArray[np.int32],
    subsequence_begins: NDArray[np.int32],
    block_indices: NDArray[np.int32],
    block_indices_begins: NDArray[np.int32],
    *,
    k_size: int,
    summary: str = "mean",
) -> NDArray[np.float64]:
    """`key_summary` after a pass: anew for the blocks that the pass wrote; shapes as in README.md."""
    out = key_summary.astype(np.float64)
    for s, past in enumerate(past_lens.tolist()):
        total = past + int(subsequence_begins[s + 1] - subsequence_begins[s])
        table = block_indices[block_indices_begins[s] : block_indices_begins[s + 1]].tolist()
        if total == past:
            continue
        for b in range(past // BLOCK_SIZE, (total - 1) // BLOCK_SIZE + 1):
            tokens = min(BLOCK_SIZE, total - b * BLOCK_SIZE)
            out[table[b]] = summarise(key_cache[table[b]], tokens, k_size, summary)
    return out
