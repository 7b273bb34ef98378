"""Layouts of the CPU plugin's paged cache, as NumPy arrays: `[blocks, kv_heads, rows of a block, row]`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 32
"""Tokens per cache block in the CPU plugin."""
_HEAD_STEP, _MOST_HEAD_SIZE, _MOST_KV_HEADS = 8, 1024, 65536


def why_not_taken(kv_heads: int, k_size: int, v_size: int) -> str:
    """Why no operation of ours takes a cache of so many KV heads of these sizes; empty: all of them do."""
    for size in (k_size, v_size):
        if not 0 < size <= _MOST_HEAD_SIZE or size % _HEAD_STEP:
            most = f"multiples of {_HEAD_STEP} up to {_MOST_HEAD_SIZE}"
            return f"heads of size {size}, and our operations take {most}"
    if not 0 < kv_heads <= _MOST_KV_HEADS:
        return f"{kv_heads} KV heads, and our operations take 1 to {_MOST_KV_HEADS}"
    return ""


def _decode_u8(block: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """`[.., 32, size + 8]` (by token) or `[.., 40, size]` (by channel) -> `[.., 32, size]`."""
    if block.shape[-2:] == (BLOCK_SIZE, size + 8):
        scale, zero_point = np.moveaxis(np.ascontiguousarray(block[..., :8]).view(np.float32), -1, 0)[
            ..., None
        ]
        data = block[..., 8:]
    elif block.shape[-2:] == (BLOCK_SIZE + 8, size):
        head = np.ascontiguousarray(block[..., :8, :]).reshape(*block.shape[:-2], 8 * size).view(np.float32)
        scale, zero_point = head[..., None, :size], head[..., None, size:]
        data = block[..., 8:, :]
    else:
        raise ValueError(
            f"block is of shape {block.shape}, expected [.., 32, {size + 8}] or [.., 40, {size}]"
        )
    value = (data.astype(np.float64) - zero_point.astype(np.float64)) * scale.astype(np.float64)
    return np.asarray(value)


def decode_block(block: NDArray[Any], size: int) -> NDArray[np.float64]:
    """Values of cache blocks, `[.., rows of a block, row]` -> `[.., 32, size]`.

    `block` is f32, f16, u8 (by token or by channel, told apart by shape) or bf16, as its bits in u16.
    """
    if block.dtype == np.uint8:
        return _decode_u8(block, size)
    if block.dtype == np.uint16:
        return (block.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return block.astype(np.float64)
