"""NumPy reference of KeySummary: what is kept of a block's keys, as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE, decode_block
from ovspec_ops.verify_attention.tables import unpack_tables

PART_TOKENS = 8
PARTS = BLOCK_SIZE // PART_TOKENS
"""Means of a block, of 8 tokens each. As in layout.hpp."""
_LARGEST = 15  # of 4 bits


def summary_bytes(k_size: int) -> int:
    """Bytes of a block's summary, per KV head."""
    return PARTS * (8 + k_size // 2)


def tokens_of_parts(tokens: int) -> NDArray[np.int64]:
    """How many of a block's first `tokens` each part has, `[parts]`."""
    return np.clip(tokens - PART_TOKENS * np.arange(PARTS), 0, PART_TOKENS)


def summarise(block: NDArray[Any], tokens: int, k_size: int) -> NDArray[np.uint8]:
    """Summary of the first keys of `block` `[kv_heads, rows of a block, row]`.

    The mean key of each part, rounded to 16 numbers between its smallest and its largest channel. Returns
    u8 `[kv_heads, summary_bytes]`: the parts' scales and zero points, f32, then their numbers; byte d of a
    part holds channel d in its lower half and channel d + k_size / 2 in its upper one.
    """
    keys, heads = decode_block(block, k_size), len(block)
    scales, zeros = np.zeros((2, heads, PARTS), np.float32)
    numbers = np.zeros((heads, PARTS, k_size), np.uint8)
    for part, count in enumerate(tokens_of_parts(tokens).tolist()):
        if count == 0:
            continue
        begin = part * PART_TOKENS
        mean = keys[:, begin : begin + count].mean(axis=1, dtype=np.float64).astype(np.float32)
        zeros[:, part] = mean.min(axis=1)
        scales[:, part] = (mean.max(axis=1) - zeros[:, part]) / np.float32(_LARGEST)
        steps = np.where(scales[:, part] >= 1e-37, scales[:, part], np.inf)[:, None]
        with np.errstate(invalid="ignore"):
            numbers[:, part] = np.rint((mean - zeros[:, part, None]) / steps)
    packed = numbers[..., : k_size // 2] | numbers[..., k_size // 2 :] << 4
    parts = [scales.view(np.uint8), zeros.view(np.uint8), packed.reshape(heads, -1)]
    return np.asarray(np.concatenate(parts, axis=1))


def means(summary: NDArray[np.uint8], k_size: int) -> NDArray[np.float64]:
    """The parts' mean keys, `[.., parts, k_size]`, of summaries `[.., summary_bytes]`."""
    floats = np.ascontiguousarray(summary[..., : PARTS * 8]).view(np.float32).astype(np.float64)
    scales, zeros = floats[..., :PARTS, None], floats[..., PARTS:, None]
    packed = summary[..., PARTS * 8 :].reshape(*summary.shape[:-1], PARTS, k_size // 2)
    return np.asarray(np.concatenate([packed & 15, packed >> 4], axis=-1) * scales + zeros)


def key_summary(
    key_cache: NDArray[Any],
    key_summary: NDArray[np.uint8],
    verify_tables: NDArray[np.int32],
    summarised_lens: NDArray[np.int32],
    *,
    k_size: int,
) -> NDArray[np.uint8]:
    """`key_summary` after a pass, anew from the first token without one on; shapes as in README.md."""
    out = np.array(key_summary)
    begins, past_lens, block_begins, _, blocks = unpack_tables(verify_tables)
    for s, past in enumerate(past_lens.tolist()):
        summarised, total = int(summarised_lens[s]), past + int(begins[s + 1] - begins[s])
        table = blocks[block_begins[s] : block_begins[s + 1]].tolist()
        if summarised < 0:
            continue
        for b in range(summarised // BLOCK_SIZE, (total - 1) // BLOCK_SIZE + 1):
            new = summarise(key_cache[table[b]], min(BLOCK_SIZE, total - b * BLOCK_SIZE), k_size)
            kept = max(0, summarised - b * BLOCK_SIZE) // PART_TOKENS
            numbers = PARTS * 8
            for begin, size in ((0, 4), (PARTS * 4, 4), (numbers, k_size // 2)):
                of_part = slice(begin, begin + kept * size)
                new[:, of_part] = out[table[b]][:, of_part]
            out[table[b]] = new
    return out
