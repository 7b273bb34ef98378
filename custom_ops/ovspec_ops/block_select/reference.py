"""NumPy reference of BlockSelect, in f64: the block selection of arXiv 2512.21911 and what extends it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE

MOST_VERIFIED_ROWS = 64
"""Rows of a draft under verification; more rows of one sequence are of a prompt. As in op.cpp."""


def block_scores(
    query: NDArray[np.float32], summaries: NDArray[np.float32], summary: str = "mean"
) -> NDArray[np.float64]:
    """Mean over query heads of a block's score for one row.

    `query` `[group, k_size]`, `summaries` `[blocks, k_size]` or, of minima and maxima, `[blocks, 2 * k_size]`
    -> `[blocks]`: q . mean, or Quest's upper bound of q . k, the sum over d of max(q_d * min_d, q_d * max_d).
    """
    q, of_block = query.astype(np.float64)[:, None], summaries.astype(np.float64)[None]
    if summary == "mean":
        return np.asarray((q * of_block).sum(axis=-1).mean(axis=0))
    low, high = np.split(of_block, 2, axis=-1)
    return np.asarray(np.maximum(q * low, q * high).sum(axis=-1).mean(axis=0))


def sinks_and_tail(
    past: int, rows: int, sink_blocks: int = 1, local_blocks: int = 1, block_size: int = BLOCK_SIZE
) -> tuple[set[int], set[int]]:
    """Blocks kept whatever they score: the first; the last of the context and those of the rows."""
    last = max(past - 1, 0) // block_size
    total = (past + rows - 1) // block_size + 1
    return {*range(min(sink_blocks, total))}, {*range(max(0, last - local_blocks + 1), total)}


def block_masses(
    scores: NDArray[np.float64], tokens: int, scale: float, block_size: int = BLOCK_SIZE
) -> NDArray[np.float64]:
    """Estimated attention mass of every block, up to a factor: softmax of the scores times tokens."""
    in_block = np.minimum(block_size, tokens - block_size * np.arange(len(scores)))
    with np.errstate(invalid="ignore"):
        highest = max((s for s in scores if not np.isnan(s)), default=-np.inf)
        return np.asarray(np.nan_to_num(np.exp(scale * (scores - highest)) * in_block, nan=0.0))


def select(
    scores: NDArray[np.float64],
    past: int,
    rows: int,
    budget: int,
    *,
    coverage: float = 1.0,
    scale: float = 1.0,
    sink_blocks: int = 1,
    local_blocks: int = 1,
) -> list[int]:
    """Logical blocks that one KV head keeps, ascending.

    Those of `sinks_and_tail`; then the highest scores, lower block numbers first among equals and NaN last,
    until `budget` blocks are kept or those kept hold the share `coverage` of `block_masses` (1: no limit).
    """
    sinks, tail = sinks_and_tail(past, rows, sink_blocks, local_blocks)
    kept = sinks | tail
    masses = block_masses(scores, past + rows, scale)
    for b in np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable").tolist():
        if len(kept) >= budget or (coverage < 1 and masses[sorted(kept)].sum() >= coverage * masses.sum()):
            break
        kept.add(b)
    return sorted(kept)


def block_select(
    query: NDArray[np.float32],
    key_summary: NDArray[np.float32],
    subsequence_begins: NDArray[np.int32],
    verify_past_lens: NDArray[np.int32],
    verify_block_indices: NDArray[np.int32],
    verify_block_indices_begins: NDArray[np.int32],
    verify_budgets: NDArray[np.int32],
    verify_coverage: NDArray[np.float32] | None = None,
    verify_refresh: NDArray[np.int32] | None = None,
    kept_blocks: NDArray[np.int32] | None = None,
    *,
    kv_heads: int,
    k_size: int,
    summary: str = "mean",
    rows_of_query: str = "last",
    sink_blocks: int = 1,
    local_blocks: int = 1,
    scale: float = 1.0,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`selected_blocks` `[kv_heads, N]` and `selected_counts` `[kv_heads, seqs]`; inputs as in README.md.

    `kept_blocks` is updated in place. `rows_of_query` is the attribute `query`. More than
    `MOST_VERIFIED_ROWS` rows are of a prompt: a block scores the mean over all of them.
    """
    ends = {"sink_blocks": sink_blocks, "local_blocks": local_blocks}
    blocks = np.full((kv_heads, verify_block_indices.size), -1, np.int32)
    counts = np.full((kv_heads, verify_past_lens.size), -1, np.int32)
    heads = query.reshape(query.shape[0], kv_heads, -1, k_size)
    for s, (past, budget) in enumerate(zip(verify_past_lens.tolist(), verify_budgets.tolist(), strict=True)):
        first, last = subsequence_begins[s : s + 2].tolist()
        total = (past + last - first - 1) // BLOCK_SIZE + 1
        coverage = 1.0 if verify_coverage is None else float(verify_coverage[s])
        if past < 0 or budget < 0 or (budget >= total and coverage >= 1):
            continue
        begin = int(verify_block_indices_begins[s])
        own = np.arange(begin, begin + total)
        table = verify_block_indices[own]
        reuses = verify_refresh is not None and verify_refresh.size > 0 and verify_refresh[s] == 0
        for h in range(kv_heads):
            kept: Iterable[int]
            if reuses:
                assert kept_blocks is not None
                sinks, tail = sinks_and_tail(past, last - first, **ends)
                kept = sorted(sinks | tail | set(np.flatnonzero(kept_blocks[own, h]).tolist()))
                # When the context grows, the last blocks of this pass become blocks of the list.
                kept_blocks[own[sorted(tail)], h] = 1
            else:
                is_prompt = last - first > MOST_VERIFIED_ROWS
                rows = range(first, last if is_prompt or rows_of_query == "union" else first + 1)
                of_rows = [block_scores(heads[r, h], key_summary[table, h], summary) for r in rows]
                scores = np.mean(of_rows, axis=0) if is_prompt else np.max(of_rows, axis=0)
                kept = select(scores, past, last - first, budget, coverage=coverage, scale=scale, **ends)
                if kept_blocks is not None and kept_blocks.size:
                    kept_blocks[own, h] = np.isin(np.arange(total), kept)
            kept = list(kept)
            blocks[h, begin : begin + len(kept)] = kept
            counts[h, s] = len(kept)
    return blocks, counts
