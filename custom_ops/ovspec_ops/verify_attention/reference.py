"""NumPy reference of VerifyAttention, in f64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE, decode_block


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Along the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def attend(
    query: NDArray[np.float32],
    keys: NDArray[Any],
    values: NDArray[Any],
    past: int,
    table: Sequence[int],
    selected: Sequence[int],
    v_size: int,
    scale: float,
    sliding_window: int = 0,
    sinks: NDArray[np.float32] | None = None,
    parents: Sequence[int] | None = None,
    past_window: int = 0,
    causal: bool = True,
) -> NDArray[np.float64]:
    """One KV head of one sequence: `query` `[rows, group, k_size]` -> `[rows, group, v_size]`.

    `keys` and `values` are that head's cache, `[blocks, rows of a block, row]`; `table` names the sequence's
    blocks in it; `selected` the logical blocks that are read. Row r's key stands in slot past + r. It follows
    row `parents[r]`, or the past where that is -1 (without `parents` row r - 1), and sees the past, its
    ancestors and itself; its position is past + its number of ancestors. With a window it sees only keys at
    positions above its own - sliding_window; with `past_window` of the past the last so many tokens; without
    `causal` all rows. `sinks` `[group]` are logits that take weight and give no value.
    """
    rows, _, k_size = query.shape
    slot = np.concatenate([np.arange(BLOCK_SIZE) + b * BLOCK_SIZE for b in selected])
    physical = [table[b] for b in selected]
    key = decode_block(keys[physical], k_size).reshape(-1, k_size)
    value = decode_block(values[physical], v_size).reshape(-1, v_size)
    out = np.empty((rows, query.shape[1], v_size))
    position = np.arange(past + rows)
    paths: list[list[int]] = []
    for r in range(rows):
        parent = r - 1 if parents is None else parents[r]
        paths.append([*(paths[parent] if parent >= 0 else []), r])
        position[past + r] = past + len(paths[r]) - 1
        own = paths[r] if causal else range(rows)
        visible = [
            *range(max(0, past - past_window) if past_window else 0, past),
            *(past + row for row in own),
        ]
        if sliding_window:
            visible = [s for s in visible if position[s] > position[past + r] - sliding_window]
        seen = np.isin(slot, visible)
        scores = scale * query[r].astype(np.float64) @ key[seen].T
        if sinks is not None:
            scores = np.concatenate([scores, sinks[:, None]], axis=1)
        out[r] = softmax(scores)[:, : int(seen.sum())] @ value[seen]
    return out


def verify_attention(
    query: NDArray[np.float32],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
    attention: NDArray[np.float32],
    subsequence_begins: NDArray[np.int32],
    verify_past_lens: NDArray[np.int32],
    verify_block_indices: NDArray[np.int32],
    verify_block_indices_begins: NDArray[np.int32],
    selected_blocks: NDArray[np.int32],
    selected_counts: NDArray[np.int32],
    sinks: NDArray[np.float32] = np.zeros(0, np.float32),  # noqa: B008
    verify_parents: NDArray[np.int32] = np.zeros(0, np.int32),  # noqa: B008
    *,
    kv_heads: int,
    k_size: int,
    v_size: int,
    scale: float,
    sliding_window: int = 0,
    past_window: int = 0,
    causal: bool = True,
) -> NDArray[np.float64]:
    """The whole operation; inputs and attributes as in README.md, bf16 caches as their bits in u16."""
    group = query.shape[1] // (kv_heads * k_size)
    out = attention.astype(np.float64).reshape(-1, kv_heads, group, v_size)
    heads = query.reshape(-1, kv_heads, group, k_size)
    for s, past in enumerate(verify_past_lens.tolist()):
        if past < 0:
            continue
        rows = slice(int(subsequence_begins[s]), int(subsequence_begins[s + 1]))
        begin, end = verify_block_indices_begins[s : s + 2].tolist()
        table = verify_block_indices[begin:end].tolist()
        blocks = (past + rows.stop - rows.start - 1) // BLOCK_SIZE + 1
        for h in range(kv_heads):
            count = int(selected_counts[h, s]) if selected_counts.size else -1
            selected = (
                list(range(blocks)) if count < 0 else selected_blocks[h, begin : begin + count].tolist()
            )
            out[rows, h] = attend(
                heads[rows, h], key_cache[:, h], value_cache[:, h], past, table, selected, v_size, scale,
                sliding_window, sinks[h * group : (h + 1) * group] if sinks.size else None,
                verify_parents[rows].tolist() if verify_parents.size else None, past_window, causal,
            )  # fmt: skip
    return out.reshape(query.shape[0], -1)
