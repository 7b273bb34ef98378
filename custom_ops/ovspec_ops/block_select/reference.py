"""NumPy reference of BlockSelect, in f64: the block selection of arXiv 2512.21911."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE


def block_scores(query: NDArray[np.float32], means: NDArray[np.float32]) -> NDArray[np.float64]:
    """`query` `[group, k_size]`, `means` `[blocks, k_size]` -> `[blocks]`: mean over heads of q . mean."""
    return np.asarray((query.astype(np.float64) @ means.astype(np.float64).T).mean(axis=0))


def select(scores: NDArray[np.float64], past: int, rows: int, budget: int) -> list[int]:
    """Logical blocks that one KV head keeps, ascending.

    Always block 0, the block of position past - 1 and the blocks of the rows past .. past + rows - 1; then
    the highest scores, lower block numbers first among equals, until `budget` blocks are kept.
    """
    kept = {0, max(past - 1, 0) // BLOCK_SIZE} | {p // BLOCK_SIZE for p in range(past, past + rows)}
    for b in np.argsort(-scores, kind="stable").tolist():
        if len(kept) >= budget:
            break
        kept.add(b)
    return sorted(kept)


def block_select(
    query: NDArray[np.float32],
    summary: NDArray[np.float32],
    subsequence_begins: NDArray[np.int32],
    verify_past_lens: NDArray[np.int32],
    verify_block_indices: NDArray[np.int32],
    verify_block_indices_begins: NDArray[np.int32],
    verify_budgets: NDArray[np.int32],
    *,
    kv_heads: int,
    k_size: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`selected_blocks` `[kv_heads, N]` and `selected_counts` `[kv_heads, seqs]`; inputs as in README.md."""
    blocks = np.full((kv_heads, verify_block_indices.size), -1, np.int32)
    counts = np.full((kv_heads, verify_past_lens.size), -1, np.int32)
    heads = query.reshape(query.shape[0], kv_heads, -1, k_size)
    for s, (past, budget) in enumerate(zip(verify_past_lens.tolist(), verify_budgets.tolist(), strict=True)):
        first, last = subsequence_begins[s : s + 2].tolist()
        total = (past + last - first - 1) // BLOCK_SIZE + 1
        if past < 0 or budget < 0 or budget >= total:
            continue
        begin = int(verify_block_indices_begins[s])
        table = verify_block_indices[begin : begin + total]
        for h in range(kv_heads):
            kept = select(block_scores(heads[first, h], summary[table, h]), past, last - first, budget)
            blocks[h, begin : begin + len(kept)] = kept
            counts[h, s] = len(kept)
    return blocks, counts
