"""Writes weights in the layout that Linear streams: panels of 32 neurons."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL = 32
QUAD = 4
MOST_INPUTS = 65536
MOST_OUTPUTS = 16
NUMBERS = ("f32", "f16", "bf16")  # formats of floating-point weights
_BITS = {"u4": 4, "u8": 8, "f16": 16, "bf16": 16, "f32": 32}

Bytes = NDArray[np.uint8]


def padded_inputs(inputs: int, groups: int, fmt: str) -> int:
    """Inputs of a panel with the zeros that fill it up; only a single group has any."""
    unit = 2 if fmt in NUMBERS else 64
    return -(-inputs // unit) * unit if groups == 1 else inputs


def _head_bytes(groups: int, fmt: str) -> int:
    return 0 if fmt in NUMBERS else -(-groups * 3 * PANEL // 64) * 64


def _by_panel(values: NDArray[Any]) -> NDArray[Any]:
    """`[neurons, ..]` as `[panels, 32, ..]`, zeros for the neurons that are missing."""
    panels = -(-len(values) // PANEL)
    if len(values) % PANEL == 0:
        return values.reshape(panels, PANEL, *values.shape[1:])
    padded = np.zeros((panels * PANEL, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded.reshape(panels, PANEL, *values.shape[1:])


def packed_shape(neurons: int, inputs: int, groups: int, fmt: str) -> tuple[int, int]:
    """Panels of a layer, and bytes of each."""
    data = padded_inputs(inputs, groups, fmt) * PANEL * _BITS[fmt] // 8
    return -(-neurons // PANEL), _head_bytes(groups, fmt) + data


def _write_data(stored: Bytes, fmt: str, panels: Bytes) -> None:
    """Integers as `pack_stored` takes them, `[panels, 32, bytes]`, interleaved to the ends of `panels`."""
    words = -(-stored.shape[2] // (QUAD if fmt == "u4" else 2 * QUAD)) * (1 if fmt == "u4" else 2)
    if stored.shape[2] != QUAD * words:
        wide = np.zeros((*stored.shape[:2], QUAD * words), np.uint8)
        wide[..., : stored.shape[2]] = stored
        stored = wide
    quads = np.ascontiguousarray(stored).view(np.uint32)
    if fmt == "u4":
        quads = _four_apart(quads)
    units = np.lib.stride_tricks.as_strided(
        panels.view(np.uint32),
        (len(panels), panels.shape[1] // (QUAD * PANEL), PANEL),
        (panels.strides[0], QUAD * PANEL, QUAD),
    )
    units[:, :words] = quads.swapaxes(1, 2)


def _four_apart(pairs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Words of eight halves of bytes 0 .. 7 as 0, 4, 1, 5, 2, 6, 3, 7: inner ones change places, twice."""
    words: NDArray[np.uint32] = pairs.copy()
    changed = np.empty_like(words)
    for shift, mask in ((8, 0x0000FF00), (4, 0x00F000F0)):
        np.right_shift(words, shift, out=changed)
        changed ^= words
        changed &= np.uint32(mask)
        words ^= changed
        changed <<= np.uint32(shift)
        words ^= changed
    return words


def _pairs(values: Bytes) -> Bytes:
    """Integers of 4 bits `[neurons, inputs]` as pairs in a byte, the first in its lower half."""
    if values.shape[1] % 2:
        values = np.pad(values, ((0, 0), (0, 1)))
    paired: Bytes = values[:, 0::2] | np.left_shift(values[:, 1::2], np.uint8(4))
    return paired


def pack_stored(stored: Bytes, scales: NDArray[np.float16], zero_points: Bytes, fmt: str, out: Bytes) -> None:
    """Integer weights of one linear layer, or of some of its panels, as Linear takes them.

    Args:
        stored: integers `[neurons, inputs]`, or with `fmt` "u4" pairs of them, `[neurons, inputs / 2]`, the
            first of two in the lower half of a byte.
        scales, zero_points: f16 and u8 `[neurons, groups]`; w = (value - zero point) * scale.
        fmt: "u8" or "u4".
        out: where to write, zeros of `packed_shape`, contiguous.
    """
    groups = scales.shape[1]
    at = groups * 2 * PANEL
    by_group = np.ascontiguousarray(_by_panel(scales).swapaxes(1, 2))
    out[:, :at] = by_group.view(np.uint8).reshape(len(out), at)
    out[:, at : at + groups * PANEL] = _by_panel(zero_points).swapaxes(1, 2).reshape(len(out), -1)
    _write_data(_by_panel(stored), fmt, out[:, _head_bytes(groups, fmt) :])


def pack_numbers(values: NDArray[Any], fmt: str, out: Bytes) -> None:
    """Floating-point weights of one linear layer, or of some of its panels, as Linear takes them.

    Args:
        values: f32 or f16 `[neurons, inputs]`, or u16, the bits of bf16, which `fmt` "bf16" takes as well.
        fmt: "f32", "f16" or "bf16"; what it can't hold is rounded to the nearest, ties to even.
        out: where to write, zeros of `packed_shape`, contiguous.
    """
    inputs = values.shape[1]
    if fmt != "bf16":
        panels = out.view(np.float32 if fmt == "f32" else np.float16).reshape(len(out), -1, PANEL)
        panels[:, :inputs] = _by_panel(values).swapaxes(1, 2)
        return
    bits = _by_panel(values if values.dtype == np.uint16 else bf16_bits(values))
    if inputs % 2:
        bits = np.pad(bits, ((0, 0), (0, 0), (0, 1)))
    pairs = np.ascontiguousarray(bits).view(np.uint32)
    out.view(np.uint32).reshape(len(out), -1, PANEL)[...] = pairs.swapaxes(1, 2)


def bf16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """f32 or f16 numbers as the bits of bf16, rounded to the nearest, ties to even."""
    if values.dtype == np.float16:
        looked_up: NDArray[np.uint16] = _bf16_of_f16().take(values.view(np.uint16))
        return looked_up
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    nan = bits >> np.uint32(16) | np.uint32(0x40)
    found: NDArray[np.uint16] = np.where(np.isnan(values), nan, rounded).astype(np.uint16)
    return found


@functools.cache
def _bf16_of_f16() -> NDArray[np.uint16]:
    """`bf16_bits` of every f16, by its bits; looking one up takes a tenth of the time of rounding it."""
    return bf16_bits(np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32))


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers whose bits `bf16_bits` returns."""
    values: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def pack_linear(
    values: NDArray[Any],
    scales: NDArray[np.float16] | None = None,
    zero_points: Bytes | None = None,
    fmt: str = "u8",
) -> Bytes:
    """As `pack_stored`, of integers `[neurons, inputs]` up to 255, or 15 with `fmt` "u4"; or `pack_numbers`.

    Returns:
        u8 `[panels, bytes]`.
    """
    neurons, inputs = values.shape
    groups = 1 if scales is None else scales.shape[1]
    out = np.zeros(packed_shape(neurons, inputs, groups, fmt), np.uint8)
    if scales is None or zero_points is None:
        pack_numbers(values, fmt, out)
    else:
        pack_stored(_pairs(values) if fmt == "u4" else values, scales, zero_points, fmt, out)
    return out


def unpack_linear(
    packed: Bytes, neurons: int, inputs: int, groups: int, fmt: str
) -> tuple[Bytes, NDArray[np.float16], Bytes]:
    """The inverse of `pack_linear` for integers: values, scales and zero points."""
    panels, at, size = len(packed), groups * 2 * PANEL, groups * PANEL
    scales = np.ascontiguousarray(packed[:, :at]).view(np.float16).reshape(panels, groups, PANEL)
    zero_points = packed[:, at : at + size].reshape(panels, groups, PANEL)
    data = packed[:, _head_bytes(groups, fmt) :].reshape(panels, -1, QUAD * PANEL)
    if fmt == "u4":
        data = np.stack([data & 15, data >> 4], 2).reshape(panels, -1, QUAD * PANEL)
    values = data.reshape(panels, -1, PANEL, QUAD).swapaxes(1, 2).reshape(panels * PANEL, -1)
    flat = [part.swapaxes(1, 2).reshape(-1, groups)[:neurons] for part in (scales, zero_points)]
    return values[:neurons, :inputs], flat[0], flat[1]


def unpack_numbers(packed: Bytes, neurons: int, inputs: int, fmt: str) -> NDArray[np.float64]:
    """The inverse of `pack_linear` for floating-point numbers: `[neurons, inputs]`."""
    if fmt == "bf16":
        pairs = bf16_values(packed.view(np.uint16)).reshape(len(packed), -1, PANEL, 2)
        values: NDArray[Any] = pairs.swapaxes(1, 2).reshape(len(packed) * PANEL, -1)
    else:
        halves = packed.view(np.float32 if fmt == "f32" else np.float16)
        values = halves.reshape(len(packed), -1, PANEL).swapaxes(1, 2).reshape(len(packed) * PANEL, -1)
    return values[:neurons, :inputs].astype(np.float64)
