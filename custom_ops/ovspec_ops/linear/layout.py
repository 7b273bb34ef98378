"""Writes weights in the layout that Linear streams: panels of 32 neurons, interleaved by four inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL = 32
QUAD = 4
MOST_INPUTS = 65536
MOST_OUTPUTS = 16

Bytes = NDArray[np.uint8]


def padded_inputs(inputs: int, groups: int) -> int:
    """Inputs of a panel with the zeros that fill it up; only a single group has any."""
    return -(-inputs // 64) * 64 if groups == 1 else inputs


def _head_bytes(groups: int) -> int:
    return -(-groups * 3 * PANEL // 64) * 64


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
    data = padded_inputs(inputs, groups) * PANEL // (2 if fmt == "u4" else 1)
    return -(-neurons // PANEL), _head_bytes(groups) + data


def _write_data(values: Bytes, fmt: str, panels: Bytes) -> None:
    """Integers `[panels, 32, inputs]`, interleaved by four inputs, to the ends of `panels`."""
    padded = -(-values.shape[2] // (2 * QUAD)) * 2 * QUAD
    if values.shape[2] != padded:
        wide = np.zeros((*values.shape[:2], padded), np.uint8)
        wide[..., : values.shape[2]] = values
        values = wide
    quads = np.ascontiguousarray(values).view(np.uint32).swapaxes(1, 2)
    units = np.lib.stride_tricks.as_strided(
        panels.view(np.uint32),
        (len(panels), panels.shape[1] // (QUAD * PANEL), PANEL),
        (panels.strides[0], QUAD * PANEL, QUAD),
    )
    if fmt == "u8":
        units[:, : quads.shape[1]] = quads
        return
    to = units[:, : quads.shape[1] // 2]
    np.left_shift(quads[:, 1::2], 4, out=to)
    to |= quads[:, 0::2]


def pack_linear(
    values: Bytes, scales: NDArray[np.float16], zero_points: Bytes, fmt: str, out: Bytes | None = None
) -> Bytes:
    """Weights of one linear layer as Linear takes them.

    Args:
        values: integers `[neurons, inputs]`, up to 255, or 15 with `fmt` "u4".
        scales, zero_points: f16 and u8 `[neurons, groups]`; w = (value - zero point) * scale.
        fmt: "u8" or "u4".
        out: where to write, zeros of `packed_shape`, contiguous.

    Returns:
        u8 `[panels, bytes]`.
    """
    groups = scales.shape[1]
    if out is None:
        neurons, inputs = values.shape
        out = np.zeros(packed_shape(neurons, inputs, groups, fmt), np.uint8)
    at = groups * 2 * PANEL
    by_group = np.ascontiguousarray(_by_panel(scales).swapaxes(1, 2))
    out[:, :at] = by_group.view(np.uint8).reshape(len(out), at)
    out[:, at : at + groups * PANEL] = _by_panel(zero_points).swapaxes(1, 2).reshape(len(out), -1)
    _write_data(_by_panel(values), fmt, out[:, _head_bytes(groups) :])
    return out


def unpack_linear(
    packed: Bytes, neurons: int, inputs: int, groups: int, fmt: str
) -> tuple[Bytes, NDArray[np.float16], Bytes]:
    """The inverse of `pack_linear`: values, scales and zero points."""
    panels, at, size = len(packed), groups * 2 * PANEL, groups * PANEL
    scales = np.ascontiguousarray(packed[:, :at]).view(np.float16).reshape(panels, groups, PANEL)
    zero_points = packed[:, at : at + size].reshape(panels, groups, PANEL)
    data = packed[:, _head_bytes(groups) :].reshape(panels, -1, QUAD * PANEL)
    if fmt == "u4":
        data = np.stack([data & 15, data >> 4], 2).reshape(panels, -1, QUAD * PANEL)
    values = data.reshape(panels, -1, PANEL, QUAD).swapaxes(1, 2).reshape(panels * PANEL, -1)
    flat = [part.swapaxes(1, 2).reshape(-1, groups)[:neurons] for part in (scales, zero_points)]
    return values[:neurons, :inputs], flat[0], flat[1]
