"""Writes weights in the layout that Linear streams: panels of 32 neurons, interleaved by four inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL = 32
QUAD = 4
MOST_INPUTS = 65536

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


def _quads(values: Bytes, padded: int) -> Bytes:
    """`[panels, 32, inputs]` as `[panels, inputs / 4, 128]`: four inputs of every neuron side by side."""
    panels, _, inputs = values.shape
    if inputs != padded:
        wide = np.zeros((panels, PANEL, padded), np.uint8)
        wide[..., :inputs] = values
        values = wide
    quads = np.ascontiguousarray(values).view(np.uint32).transpose(0, 2, 1)
    return np.ascontiguousarray(quads).view(np.uint8).reshape(panels, padded // QUAD, QUAD * PANEL)


def pack_linear(values: Bytes, scales: NDArray[np.float16], zero_points: Bytes, fmt: str) -> Bytes:
    """Weights of one linear layer as Linear takes them.

    Args:
        values: integers `[neurons, inputs]`, up to 255, or 15 with `fmt` "u4".
        scales, zero_points: f16 and u8 `[neurons, groups]`; w = (value - zero point) * scale.
        fmt: "u8" or "u4".

    Returns:
        u8 `[panels, bytes]`.
    """
    groups = scales.shape[1]
    quads = _quads(_by_panel(values), padded_inputs(values.shape[1], groups))
    if fmt == "u4":
        quads = quads[:, 0::2] | quads[:, 1::2] << np.uint8(4)
    panels = len(quads)
    head = np.zeros((panels, _head_bytes(groups)), np.uint8)
    by_group = np.ascontiguousarray(_by_panel(scales).swapaxes(1, 2))
    at = groups * 2 * PANEL
    head[:, :at] = by_group.view(np.uint8).reshape(panels, at)
    head[:, at : at + groups * PANEL] = _by_panel(zero_points).swapaxes(1, 2).reshape(panels, -1)
    return np.concatenate([head, quads.reshape(panels, -1)], axis=1)


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
