"""NumPy reference of CacheWrite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.cache_layout import BLOCK_SIZE

# Of a row whose values are all alike, or so small that nothing can be divided by their scale.
_LEAST_SCALE, _SMALLEST = np.float32(1e-4), np.finfo(np.float32).tiny


def rounded(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows `[.., size]` as the cache has them, `[.., size + 8]`: scale and zero point f32, a byte per value.

    A row that is not finite, or whose scale or zero point is not, has no number: its scale is NaN.
    """
    finite = np.isfinite(rows).all(axis=-1, keepdims=True)
    rows = np.where(finite, rows, np.float32(0))
    low, high = rows.min(axis=-1, keepdims=True), rows.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        scale = ((high - low) / np.float32(255)).astype(np.float32)
        scale = np.where(scale < _SMALLEST, _LEAST_SCALE, scale)
        zero_point = (-low / scale).astype(np.float32)
    finite &= np.isfinite(scale) & np.isfinite(zero_point)
    scale = np.where(finite, scale, np.float32(1)).astype(np.float32)
    zero_point = np.where(finite, zero_point, np.float32(0)).astype(np.float32)
    rows, factor = np.where(finite, rows, np.float32(0)), np.float32(1) / scale
    # A product and a sum that are rounded once: f64 holds the product of two f32.
    whole = np.rint((rows.astype(np.float64) * factor + zero_point).astype(np.float32))
    scale = np.where(finite, scale, np.float32(np.nan)).astype(np.float32)
    head = np.concatenate([scale, zero_point], axis=-1).view(np.uint8)
    return np.concatenate([head, np.clip(whole, 0, 255).astype(np.uint8)], axis=-1)


def cache_write(
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
    slot_mapping: NDArray[np.int32],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both caches, u8 or f32, after the rows are written; shapes as in README.md."""
    found = []
    for rows, cache in ((key, key_cache), (value, value_cache)):
        written, heads = cache.copy(), cache.shape[1]
        block, token = np.divmod(slot_mapping, BLOCK_SIZE)
        values = rows.reshape(len(rows), heads, -1)
        written[block, :, token] = rounded(values) if cache.dtype == np.uint8 else values
        found.append(written)
    return found[0], found[1]
