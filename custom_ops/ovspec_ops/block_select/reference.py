"""NumPy reference of BlockSelect, in f64: by the mass of all rows, and by the rule of arXiv 2512.21911."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE
from ovspec_ops.key_summary.reference import PARTS, means, tokens_of_parts
from ovspec_ops.verify_attention.tables import unpack_tables

MOST_VERIFIED_ROWS = 64
"""Rows of a draft under verification; more rows of one sequence are of a prompt. As in op.cpp."""

Array = NDArray[np.float64]


def rounded(query: NDArray[np.float32]) -> Array:
    """Queries `[.., k_size]` as whole numbers of a 127th of their largest channel."""
    steps = np.abs(query).max(axis=-1, keepdims=True) / np.float32(127)
    shares = np.divide(query, steps, out=np.zeros_like(query), where=steps >= 1e-37)
    return np.asarray(np.rint(shares) * steps.astype(np.float64))


def part_scores(query: Array, summaries: NDArray[np.uint8], scale: float) -> Array:
    """`scale * query . mean key`: `[queries, k_size]`, `[blocks, bytes]` -> `[queries, blocks, parts]`."""
    keys = means(summaries, query.shape[-1])
    return np.asarray(scale * np.einsum("qd,bpd->qbp", query, keys))


def part_counts(past: int, blocks: int, block_size: int = BLOCK_SIZE) -> Array:
    """Tokens of every part of the blocks before a pass, `[blocks, parts]`."""
    in_block = np.minimum(block_size, past - block_size * np.arange(blocks))
    return np.array([tokens_of_parts(tokens) for tokens in in_block.tolist()], np.float64).reshape(
        blocks, PARTS
    )


def mass_scores(scores: Array, counts: Array) -> Array:
    """Share of the attention to all blocks that each one gets, as sum over the queries, `[blocks]`.

    Softmax over all tokens, each with the score of its part's mean key; `scores` `[queries, blocks, parts]`.
    A part without a finite score has no share.
    """
    known = np.where(np.isfinite(scores) & (counts > 0), scores, -1e30)
    weights = np.exp(known - known.max(axis=(1, 2), keepdims=True)) * counts
    of_blocks = weights.sum(axis=2)
    return np.asarray((of_blocks / of_blocks.sum(axis=1, keepdims=True)).sum(axis=0))


def mean_scores(scores: Array, counts: Array) -> Array:
    """Mean score of a block's tokens and of the queries, `[blocks]`: the paper's."""
    with np.errstate(invalid="ignore"):
        of_blocks = np.where(counts > 0, scores * counts, 0.0).sum(axis=2) / counts.sum(axis=1)
    return np.asarray(of_blocks.mean(axis=0))


def sinks_and_tail(
    past: int, rows: int, sink_blocks: int = 1, local_blocks: int = 1, block_size: int = BLOCK_SIZE
) -> tuple[set[int], set[int]]:
    """Blocks kept whatever they score: the first; the last of the context and those of the rows."""
    last = max(past - 1, 0) // block_size
    total = (past + rows - 1) // block_size + 1
    return {*range(min(sink_blocks, total))}, {*range(max(0, last - local_blocks + 1), total)}


def masses_of(scores: Array, past: int, block_size: int = BLOCK_SIZE) -> Array:
    """Attention to blocks as their mean scores estimate it, up to a factor: softmax times tokens."""
    in_block = np.minimum(block_size, past - block_size * np.arange(len(scores)))
    with np.errstate(invalid="ignore"):
        highest = max((s for s in scores if not np.isnan(s)), default=-np.inf)
        return np.asarray(np.exp(scores - highest) * in_block)


def select(
    scores: Array,
    past: int,
    rows: int,
    budget: int,
    *,
    coverage: float = 1.0,
    masses: Array | None = None,
    sink_blocks: int = 1,
    local_blocks: int = 1,
) -> list[int]:
    """Logical blocks that one KV head keeps, ascending; `scores` are those of the blocks before the pass.

    Those of `sinks_and_tail`; then the highest scores, lower block numbers first among equals and NaN last,
    until `budget` blocks are kept or those kept hold the share `coverage` of `masses`, by default the scores
    themselves (1: no limit).
    """
    sinks, tail = sinks_and_tail(past, rows, sink_blocks, local_blocks)
    kept = sinks | tail
    mass = np.nan_to_num(scores if masses is None else masses, nan=0.0)
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable").tolist()
    for b in [b for b in order if b not in kept]:
        held = mass[sorted(b for b in kept if b < len(mass))].sum()
        if len(kept) >= budget or (coverage < 1 and held >= coverage * mass.sum()):
            break
        kept.add(b)
    return sorted(kept)


def block_select(
    query: NDArray[np.float32],
    key_summary: NDArray[np.uint8],
    verify_tables: NDArray[np.int32],
    verify_budgets: NDArray[np.int32],
    verify_coverage: NDArray[np.float32] | None = None,
    *,
    kv_heads: int,
    k_size: int,
    rule: str = "mass",
    sink_blocks: int = 1,
    local_blocks: int = 1,
    scale: float = 1.0,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`selected_blocks` `[kv_heads, N]` and `selected_counts` `[kv_heads, seqs]`; inputs as in README.md.

    Both are `[kv_heads, 0]` where every budget is -1. More than `MOST_VERIFIED_ROWS` rows are of a prompt:
    all of them score by either rule.
    """
    if (verify_budgets == -1).all():
        return np.empty((kv_heads, 0), np.int32), np.empty((kv_heads, 0), np.int32)
    begins, past_lens, block_begins, _, indices = unpack_tables(verify_tables)
    blocks = np.full((kv_heads, indices.size), -1, np.int32)
    counts = np.full((kv_heads, past_lens.size), -1, np.int32)
    heads = rounded(query.reshape(query.shape[0], kv_heads, -1, k_size))
    for s, (past, budget) in enumerate(zip(past_lens.tolist(), verify_budgets.tolist(), strict=True)):
        first, last = begins[s : s + 2].tolist()
        total = (past + last - first - 1) // BLOCK_SIZE + 1
        coverage = 1.0 if verify_coverage is None else float(verify_coverage[s])
        if past < 0 or budget < 0 or (budget >= total and coverage >= 1):
            continue
        begin = int(block_begins[s])
        scored = -(-past // BLOCK_SIZE)
        table = indices[begin : begin + scored]
        of_parts = part_counts(past, scored)
        rows = last - first if rule == "mass" or last - first > MOST_VERIFIED_ROWS else 1
        for h in range(kv_heads):
            of_rows = heads[first : first + rows, h].reshape(-1, k_size)
            parts = part_scores(of_rows, key_summary[table, h], scale)
            scores = (
                (mass_scores if rule == "mass" else mean_scores)(parts, of_parts) if scored else np.zeros(0)
            )
            kept = select(
                scores,
                past,
                last - first,
                budget,
                coverage=coverage,
                masses=None if rule == "mass" else masses_of(scores, past),
                sink_blocks=sink_blocks,
                local_blocks=local_blocks,
            )
            blocks[h, begin : begin + len(kept)] = kept
            counts[h, s] = len(kept)
    return blocks, counts
