"""NumPy references of SparseMoE and ExpertBudget, in f64 (see README.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def dequantise(
    data: NDArray[Any], scales: NDArray[np.uint8], zero_points: NDArray[np.uint8], inputs: int
) -> F64:
    """One projection's weights `[experts, out, inputs]` from the three tensors of SparseMoE."""
    experts, out = data.shape[:2]
    if data.dtype == np.float32:
        return data.astype(np.float64)
    if data.shape[2] == 2 * inputs:
        return data.view(np.float16).astype(np.float64)
    if 2 * data.shape[2] == inputs:
        data = np.stack([data & 15, data >> 4], -1)
    grouped = data.reshape(experts, out, -1, inputs // zero_points.shape[2]).astype(np.float64)
    per_group = (grouped - zero_points[..., None]) * scales.view(np.float16)[..., None].astype(np.float64)
    return per_group.reshape(experts, out, inputs)


def sparse_moe(
    hidden: NDArray[np.float32],
    indices: NDArray[np.int32],
    weights: NDArray[np.float32],
    gate: F64,
    up: F64,
    down: F64,
    *,
    biases: tuple[NDArray[np.float32], ...] | None = None,
    limit: float = 0.0,
    alpha: float = 1.0,
) -> tuple[F64, int]:
    """Output `[rows, hidden]` and the number of experts read; projections from `dequantise`.

    `biases` are those of gate, up and down, `[experts, out]`; `limit` and `alpha` the operation's attributes.
    """
    output = np.zeros(hidden.shape, np.float64)
    gates, ups, downs = biases or [np.zeros(part.shape[:2], np.float32) for part in (gate, up, down)]
    for row, (chosen, shares) in enumerate(zip(indices.tolist(), weights.tolist(), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            if expert < 0:
                continue
            x = hidden[row].astype(np.float64)
            gated, other = gate[expert] @ x + gates[expert], up[expert] @ x + ups[expert]
            if limit:
                gated, other = np.minimum(gated, limit), np.clip(other, -limit, limit) + 1
            inner = gated * np.exp(-np.logaddexp(0, -alpha * gated)) * other
            output[row] += share * (down[expert] @ inner + downs[expert])
    return output, len(set(indices[indices >= 0].tolist()))


def _kept_by_mass(indices: NDArray[np.int32], weights: F64, budget: int, experts: int) -> NDArray[np.bool_]:
    """The first expert of every row, then the largest summed weights until `budget` experts are kept."""
    real = indices >= 0
    mass = np.zeros(experts)
    np.add.at(mass, indices[real], np.nan_to_num(weights[real]))
    ranks = np.where(np.isnan(weights), -np.finfo(np.float64).max, weights)
    first = np.where(real, ranks, -np.inf).argmax(axis=1)[:, None]
    kept = set(np.take_along_axis(indices, first, 1)[:, 0].tolist()) - {-1}
    for expert in np.argsort(-mass, kind="stable").tolist():
        if len(kept) >= budget:
            break
        kept.add(expert)
    return np.isin(indices, list(kept))


def expert_budget(
    indices: NDArray[np.int32],
    weights: NDArray[np.float32],
    limited: NDArray[np.bool_],
    *,
    budget: int,
    experts: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Indices (-1: dropped) and weights `[rows, top_k]` that remain; `limited`: rows that take part."""
    kept = np.ones(indices.shape, bool)
    if budget >= 0:
        kept[limited] = _kept_by_mass(indices[limited], weights[limited].astype(np.float64), budget, experts)
    # A NaN goes with its expert.
    counted = np.where(kept | ~np.isnan(weights), weights, 0.0)
    total = counted.astype(np.float64).sum(axis=1, keepdims=True)
    remaining = np.where(kept, weights, 0.0).astype(np.float64).sum(axis=1, keepdims=True)
    factor = np.divide(total, remaining, out=np.ones_like(total), where=remaining != 0)
    scaled = np.where(kept, weights * factor, 0.0)
    return np.where(kept, indices, -1).astype(np.int32), scaled.astype(np.float32)
