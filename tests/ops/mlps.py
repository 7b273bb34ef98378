"""Weights of gated MLPs, as the operation takes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.gated_mlp.layout import f16_bytes, pack_columns_u4, pack_columns_u8, pack_rows_u4
from ovspec_ops.gated_mlp.reference import dequantise

FORMATS = ("f32", "f16", "u8", "u4")
PARTS = ("gate", "up", "down")
EMPTY = np.zeros((0,), np.uint8)

Tensors = tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.uint8]]


def projection(
    rng: np.random.Generator, channels: int, hidden: int, fmt: str, groups: int, down: bool
) -> Tensors:
    """Data, scales and zero points of one projection; groups of `hidden`, or of channels for down."""
    inputs = channels if down else hidden
    if fmt in ("f32", "f16"):
        values = (rng.standard_normal((channels, hidden)) / inputs**0.5).astype(np.float32)
        return values if fmt == "f32" else f16_bytes(values), EMPTY, EMPTY
    top = 256 if fmt == "u8" else 16
    values = rng.integers(0, top, (channels, hidden), dtype=np.uint8)
    shape = (groups, hidden) if down else (channels, groups)
    zero_points = rng.integers(0, top, shape, dtype=np.uint8)
    scales = f16_bytes(rng.uniform(0.5, 1.5, shape) / (top * inputs**0.5))
    if down:
        packed = (pack_columns_u8 if fmt == "u8" else pack_columns_u4)(values)
    else:
        packed = values if fmt == "u8" else pack_rows_u4(values, groups)
    return packed, scales, zero_points


@dataclass
class Mlp:
    """The weights of one layer; `groups` of the hidden inputs and of the channels, for u4."""

    hidden: int
    channels: int
    fmt: str
    groups: tuple[int, int] = (1, 1)
    seed: int = 0
    formats: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.formats = dict.fromkeys(PARTS, self.fmt) | self.formats
        self.parts: dict[str, Tensors] = {}
        for part in PARTS:
            fmt = self.formats[part]
            groups = self.groups[part == "down"] if fmt == "u4" else 1
            self.parts[part] = projection(rng, self.channels, self.hidden, fmt, groups, part == "down")

    @property
    def attributes(self) -> dict[str, Any]:
        return {f"{part}_format": fmt for part, fmt in self.formats.items()}

    @property
    def byte_rows(self) -> dict[str, tuple[str, int]]:
        """Format and groups of every projection, as the reference takes them for rows of 8 bits."""
        return {
            part: (fmt, self.groups[part == "down"] if fmt == "u4" else 1)
            for part, fmt in self.formats.items()
        }

    @property
    def values(self) -> list[NDArray[np.float64]]:
        """Gate, up and down `[channels, hidden]`."""
        return [
            dequantise(*self.parts[part], self.formats[part], self.hidden, part == "down") for part in PARTS
        ]
