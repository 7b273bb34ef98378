"""NumPy reference of GatedMLP, in f64 (see README.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.byte_values import GROUP, round_values
from ovspec_ops.gated_mlp.layout import lane_order, unpack_columns, unpack_rows_u4

F64 = NDArray[np.float64]


def dequantise(
    data: NDArray[Any], scales: NDArray[Any], zero_points: NDArray[Any], fmt: str, hidden: int, down: bool
) -> F64:
    """One projection's weights, f64 `[channels, hidden]`, from the three tensors of GatedMLP."""
    if fmt in ("f32", "f16"):
        return np.asarray(data if fmt == "f32" else data.view(np.float16), np.float64)
    factors = scales.view(np.float16).astype(np.float64)
    axis, groups = (0, len(zero_points)) if down else (1, zero_points.shape[1])
    if down:
        values = unpack_columns(data, hidden, fmt == "u4")
    else:
        values = unpack_rows_u4(data, hidden, groups) if fmt == "u4" else data
    repeat = values.shape[axis] // groups
    return np.asarray(
        (values - zero_points.repeat(repeat, axis).astype(np.float64)) * factors.repeat(repeat, axis)
    )


def activate(x: F64, activation: str) -> F64:
    """`silu`, `gelu_tanh` or `gelu_erf`."""
    if activation == "silu":
        return np.asarray(x * np.exp(-np.logaddexp(0, -x)))
    if activation == "gelu_tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))))


def rounded_rows(rows: F64, fmt: str, groups: int) -> F64:
    """What gate or up weights meet with rows of 8 bits: `rows` `[rows, hidden]`.

    A scale is for the 32 values that one lane meets in the order of the weights.
    """
    if fmt not in ("u8", "u4"):
        return rows
    places = lane_order(rows.shape[1], groups if fmt == "u4" else 1, fmt == "u4")
    padded = np.concatenate([rows, np.zeros((len(rows), 1))], 1)[:, places]  # place -1: padding
    result = np.zeros((len(rows), rows.shape[1] + 1))
    result[:, places] = round_values(padded)
    return result[:, :-1]


def rounded_inner(inner: F64, kept: NDArray[np.intp], fmt: str, groups: int) -> F64:
    """What down weights meet with rows of 8 bits: `inner` `[rows, channels]`.

    A scale is for 32 kept channels of a group of weights, one behind the other.
    """
    if fmt not in ("u8", "u4"):
        return inner
    result = np.zeros_like(inner)
    group_of = kept // (inner.shape[1] // (groups if fmt == "u4" else 1))
    for group in np.unique(group_of):
        run = kept[group_of == group]
        for first in range(0, len(run), GROUP):
            some = run[first : first + GROUP]
            result[:, some] = round_values(inner[:, some])
    return result


def kept_channels(gates: F64, count: int) -> NDArray[np.intp]:
    """The `count` channels with the largest magnitude over activated gates `[rows, channels]`, ascending.

    NaN counts as 0.
    """
    size = np.where(np.isnan(gates), 0.0, np.abs(gates))
    return np.sort(np.argsort(-size.max(0), kind="stable")[:count])


def gated_mlp(
    hidden: NDArray[np.float32],
    gate: F64,
    up: F64,
    down: F64,
    *,
    activation: str = "silu",
    limit: int = -1,
    row_weights: NDArray[np.float32] | None = None,
    byte_rows: Mapping[str, tuple[str, int]] | None = None,
) -> tuple[F64, int]:
    """Output `[rows, hidden]` and the number of channels read; projections `[channels, hidden]`.

    `limit`: channels that rows with a weight above 0 keep, chosen for all of them together; -1: all.
    `byte_rows`, where rows become 8 bits: format and groups of the weights of `gate`, `up` and `down`.
    """
    x = hidden.astype(np.float64)
    weights = np.ones(len(x)) if row_weights is None else row_weights.astype(np.float64)
    limited = (weights > 0) & (limit >= 0)
    first = x if byte_rows is None else rounded_rows(x, *byte_rows["gate"])
    second = x if byte_rows is None else rounded_rows(x, *byte_rows["up"])
    gates = activate(first @ gate.T, activation)
    inner, read = gates * (second @ up.T), 0
    kept = every = np.arange(inner.shape[1])
    if limited.any():
        kept = kept_channels(gates[limited], limit)
        dropped = np.ones(inner.shape[1], bool)
        dropped[kept] = False
        inner[np.ix_(limited, dropped)] = 0.0
        read = len(kept)
    if byte_rows is not None:
        for rows, channels in ((limited, kept), (~limited, every)):
            inner[rows] = rounded_inner(inner[rows], channels, *byte_rows["down"])
    return inner @ down, inner.shape[1] if not limited.all() else read
