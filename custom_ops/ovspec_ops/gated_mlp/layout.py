"""The memory layouts of GatedMLP's weights: a channel is contiguous in each projection (see README.md).

Quantised weights are given as integers, one byte each; groups run along the inputs of a neuron, as NNCF
writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def _chunks(groups: int, group_size: int) -> Iterator[tuple[slice, int, int]]:
    """Groups of a chunk, weights of a run and vectors of 64 weights, as row_layout.hpp has them."""
    first = 0
    while first < groups:
        count = 16
        while count > groups - first:
            count //= 2
        run = 64 // count
        vectors = -(-group_size // run)
        yield slice(first, first + count), run, vectors + vectors % 2
        first += count


def pack_rows_u4(values: Bytes, groups: int) -> Bytes:
    """Gate or up weights of 4 bits, `[channels, inputs]` of 0 to 15, as GatedMLP takes them."""
    channels, inputs = values.shape
    grouped = values.reshape(channels, groups, -1)
    parts = []
    for chunk, run, vectors in _chunks(groups, inputs // groups):
        padded = np.zeros((channels, chunk.stop - chunk.start, vectors * run), np.uint8)
        padded[..., : inputs // groups] = grouped[:, chunk]
        slots = padded.reshape(channels, -1, vectors, run).transpose(0, 2, 1, 3).reshape(channels, -1, 2, 64)
        parts.append((slots[:, :, 0] | slots[:, :, 1] << 4).reshape(channels, -1))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def unpack_rows_u4(data: Bytes, inputs: int, groups: int) -> Bytes:
    """The inverse of `pack_rows_u4`."""
    channels, at, parts = len(data), 0, []
    for chunk, run, vectors in _chunks(groups, inputs // groups):
        packed = data[:, at : at + vectors * 32].reshape(channels, -1, 64)
        slots = np.stack([packed & 15, packed >> 4], 2).reshape(channels, vectors, -1, run)
        groups_of = slots.transpose(0, 2, 1, 3).reshape(channels, chunk.stop - chunk.start, -1)
        parts.append(groups_of[..., : inputs // groups])
        at += vectors * 32
    return np.concatenate(parts, axis=1).reshape(channels, inputs)


def lane_order(inputs: int, groups: int, four_bits: bool) -> NDArray[np.intp]:
    """Which inputs' values share a scale where rows become 8 bits: `[scales, 32]`, -1 for padding.

    They are what one 32-bit lane meets in eight vectors of the weights.
    """
    places = []
    chunks = _chunks(groups, inputs // groups) if four_bits else [(slice(0, 1), 64, -(-inputs // 64))]
    every = np.arange(inputs).reshape(groups, -1)
    for chunk, run, vectors in chunks:
        padded = np.full((chunk.stop - chunk.start, vectors * run), -1)
        padded[:, : inputs // groups] = every[chunk]
        slots = np.full((-(-vectors // 8) * 8, 64), -1)
        slots[:vectors] = padded.reshape(-1, vectors, run).transpose(1, 0, 2).reshape(vectors, 64)
        places.append(slots.reshape(-1, 8, 16, 4).transpose(0, 2, 1, 3).reshape(-1, 32))
    return np.concatenate(places)


def _swap_units(blocks: Bytes) -> Bytes:
    """`[.., 64]` with its 4 x 4 units of four bytes transposed; its own inverse."""
    swapped: Bytes = blocks.reshape(*blocks.shape[:-1], 4, 4, 4).swapaxes(-3, -2).reshape(blocks.shape)
    return swapped


def _padded(values: Bytes, step: int) -> Bytes:
    channels, outputs = values.shape
    padded = np.zeros((channels, -(-outputs // step) * step), np.uint8)
    padded[:, :outputs] = values
    return padded


def pack_columns_u8(values: Bytes) -> Bytes:
    """Down weights of 8 bits, `[channels, outputs]`, as GatedMLP takes them."""
    blocks = _padded(values, 64).reshape(len(values), -1, 64)
    return np.ascontiguousarray(_swap_units(blocks).reshape(len(values), -1))


def pack_columns_u4(values: Bytes) -> Bytes:
    """Down weights of 4 bits, `[channels, outputs]` of 0 to 15, as GatedMLP takes them."""
    blocks = _swap_units(_padded(values, 128).reshape(len(values), -1, 2, 64))
    return np.ascontiguousarray((blocks[:, :, 0] | blocks[:, :, 1] << 4).reshape(len(values), -1))


def unpack_columns(data: Bytes, outputs: int, four_bits: bool) -> Bytes:
    """The inverse of `pack_columns_u8` and `pack_columns_u4`."""
    blocks = data.reshape(len(data), -1, 64)
    if four_bits:
        blocks = np.stack([blocks & 15, blocks >> 4], 2)
    return _swap_units(blocks).reshape(len(data), -1)[:, :outputs]


def f16_bytes(values: NDArray[Any]) -> Bytes:
    """The bytes of `values` in f16, along the last axis."""
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)
