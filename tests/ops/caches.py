"""Paged caches in every layout of the CPU plugin, written from f32 tokens, unwritten slots poisoned."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

BLOCK = 32
FORMATS = ("f32", "f16", "bf16", "u8_token", "u8_channel")


def to_bf16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _quantise(x: NDArray[np.float32], axis: int) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any]]:
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    scale = np.maximum((high - low) / 255, 1e-8).astype(np.float32)
    zero_point = (-low / scale).astype(np.float32)
    return np.clip(np.rint(x / scale + zero_point), 0, 255).astype(np.uint8), scale, zero_point


def empty_cache(fmt: str, blocks: int, kv_heads: int, size: int) -> NDArray[Any]:
    """Every slot poisoned: NaN where the format has one, bytes and NaN scales for u8."""
    if fmt == "u8_channel":
        cache = np.full((blocks, kv_heads, BLOCK + 8, size), 0xFF, np.uint8)
    elif fmt == "u8_token":
        cache = np.full((blocks, kv_heads, BLOCK, size + 8), 0xFF, np.uint8)
    elif fmt == "bf16":
        cache = np.full((blocks, kv_heads, BLOCK, size), 0x7FC1, np.uint16)
    else:
        cache = np.full((blocks, kv_heads, BLOCK, size), np.nan, np.float16 if fmt == "f16" else np.float32)
    return cache


def write_block(cache: NDArray[Any], fmt: str, block: int, tokens: NDArray[np.float32]) -> None:
    """Writes `tokens` `[n <= 32, kv_heads, size]` to the first slots of `block`."""
    count, size = tokens.shape[0], tokens.shape[2]
    x = tokens.transpose(1, 0, 2)
    to = cache[block]
    if fmt == "u8_token":
        data, scale, zero_point = _quantise(x, 2)
        head = np.concatenate([scale, zero_point], axis=2).view(np.uint8)
        to[:, :count] = np.concatenate([head, data], axis=2)
    elif fmt == "u8_channel":
        data, scale, zero_point = _quantise(x, 1)
        head = np.concatenate([scale, zero_point], axis=1)
        to[:, :8] = head.reshape(len(to), 1, -1).view(np.uint8).reshape(len(to), 8, size)
        to[:, 8 : 8 + count] = data
    elif fmt == "bf16":
        to[:, :count] = to_bf16_bits(x)
    else:
        to[:, :count] = x


def as_tensor(array: NDArray[Any], element_type: ov.Type | None = None) -> ov.Tensor:
    """A tensor that shares `array`'s memory; bf16 arrays are u16 bits, told by `element_type`."""
    if element_type is None:
        return ov.Tensor(array, shared_memory=True)
    tensor = ov.Tensor(element_type, ov.Shape(list(array.shape)))
    tensor.data.view(np.uint16)[...] = array.view(np.uint16)
    return tensor


def cache_type(fmt: str) -> ov.Type:
    return {"f32": ov.Type.f32, "f16": ov.Type.f16, "bf16": ov.Type.bf16}.get(fmt, ov.Type.u8)
