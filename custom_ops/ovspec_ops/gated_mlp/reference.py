"""NumPy reference of GatedMLP, in f64 (see README.md)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.gated_mlp.layout import unpack_columns, unpack_rows_u4

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


def kept_channels(
    gates: F64, row_weights: F64, *, rule: str, score: str, limit: float, order: NDArray[np.int32]
) -> NDArray[np.intp]:
    """Channels that the limited rows' activated gates `[rows, channels]` keep, ascending."""
    if rule == "static":
        return np.sort(order[: int(limit)]).astype(np.intp)
    size = np.abs(gates)
    scores = size.max(0) if score == "max" else (size * row_weights[:, None]).sum(0) / row_weights.sum()
    if rule == "threshold":
        return np.flatnonzero(~(scores < np.float32(limit)))
    return np.sort(np.argsort(-scores, kind="stable")[: int(limit)])


def gated_mlp(
    hidden: NDArray[np.float32],
    gate: F64,
    up: F64,
    down: F64,
    *,
    activation: str = "silu",
    rule: str = "threshold",
    score: str = "max",
    limit: float = -1.0,
    row_weights: NDArray[np.float32] | None = None,
    order: NDArray[np.int32] | None = None,
) -> tuple[F64, int]:
    """Output `[rows, hidden]` and the number of channels read; projections `[channels, hidden]`."""
    x = hidden.astype(np.float64)
    weights = np.ones(len(x)) if row_weights is None else row_weights.astype(np.float64)
    limited = (weights > 0) & (limit >= 0)
    gates = activate(x @ gate.T, activation)
    inner, read = gates * (x @ up.T), 0
    if limited.any():
        kept = kept_channels(
            gates[limited],
            weights[limited],
            rule=rule,
            score=score,
            limit=limit,
            order=np.zeros(0, np.int32) if order is None else order,
        )
        dropped = np.ones(inner.shape[1], bool)
        dropped[kept] = False
        inner[np.ix_(limited, dropped)] = 0.0
        read = len(kept)
    return inner @ down, inner.shape[1] if not limited.all() else read
