"""Weights and routings of the expert operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.moe.reference import dequantise

FORMATS = ("f32", "f16", "int8", "int4")
EMPTY = np.zeros((0,), np.uint8)

Tensors = tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.uint8]]


def projection(
    rng: np.random.Generator, experts: int, out: int, inputs: int, fmt: str, groups: int = 1
) -> Tensors:
    """Data, scales and zero points of one projection, as SparseMoE takes them."""
    shape = (experts, out, inputs)
    if fmt in ("f32", "f16"):
        values = rng.standard_normal(shape) / inputs**0.5
        if fmt == "f32":
            return values.astype(np.float32), EMPTY, EMPTY
        return values.astype(np.float16).view(np.uint8), EMPTY, EMPTY
    top, row = (256, inputs) if fmt == "int8" else (16, inputs // 2)
    data = rng.integers(0, 256, (experts, out, row), dtype=np.uint8)
    zero_points = rng.integers(0, top, (experts, out, groups), dtype=np.uint8)
    scales = (rng.uniform(0.5, 1.5, zero_points.shape) / (top * inputs**0.5)).astype(np.float16)
    return data, scales.view(np.uint8), zero_points


@dataclass
class Experts:
    """The experts of one layer."""

    experts: int
    hidden: int
    intermediate: int
    fmt: str
    groups: tuple[int, int] = (1, 1)  # of hidden and of intermediate inputs
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        sizes = (self.experts, self.intermediate, self.hidden, self.fmt, self.groups[0])
        self.gate, self.up = projection(rng, *sizes), projection(rng, *sizes)
        self.down = projection(rng, self.experts, self.hidden, self.intermediate, self.fmt, self.groups[1])

    @property
    def tensors(self) -> list[NDArray[Any]]:
        return [*self.gate, *self.up, *self.down]

    @property
    def values(self) -> list[NDArray[np.float64]]:
        """Gate, up and down `[experts, out, in]`."""
        sizes = (self.hidden, self.hidden, self.intermediate)
        return [
            dequantise(*tensors, size)
            for tensors, size in zip((self.gate, self.up, self.down), sizes, strict=True)
        ]


def route(
    rng: np.random.Generator, rows: int, top_k: int, experts: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Experts `[rows, top_k]`, none twice in a row, and weights that descend and sum to one."""
    indices = (
        np.stack([rng.permutation(experts)[:top_k] for _ in range(rows)]) if rows else np.zeros((0, top_k))
    )
    weights = -np.sort(-rng.dirichlet(np.ones(top_k), rows), axis=1)
    return indices.astype(np.int32), weights.astype(np.float32)
