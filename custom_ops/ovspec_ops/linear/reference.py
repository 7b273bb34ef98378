"""NumPy reference of Linear, in f64 (see README.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.byte_values import GROUP, round_values
from ovspec_ops.linear.layout import NUMBERS, PANEL, bf16_bits, bf16_values, unpack_linear, unpack_numbers


def rounded_rows(rows: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """`[.., inputs]` with rows of 8 bits: a scale for every 32 values of a group of weights."""
    result, size = np.empty_like(rows), rows.shape[-1] // groups
    for group in range(0, rows.shape[-1], size):
        for first in range(group, group + size, GROUP):
            some = slice(first, min(first + GROUP, group + size))
            result[..., some] = round_values(rows[..., some])
    return result


Products = Sequence[tuple[NDArray[Any], NDArray[Any], float]]
"""A `[rank, inputs]`, B `[outputs, rank]` and scale of what adapters add to a layer."""


def adapted(
    hidden: NDArray[np.float32],
    outputs: Sequence[NDArray[np.float64]],
    adapters: Sequence[Sequence[Products] | None],
    layers: Sequence[int],
) -> list[NDArray[np.float64]]:
    """Outputs of Linear with what adapters add, scale * B (A x) of rows that are not rounded.

    Args:
        hidden: `[rows, inputs]`.
        adapters: of each row the products of each layer; `None`: it has none.
        layers: of each output its layer; below 0: it has none.
    """
    found = [output.copy() for output in outputs]
    for row, of_row in enumerate(adapters):
        for output, layer in zip(found, layers, strict=True):
            for a, b, scale in of_row[layer] if of_row is not None and layer >= 0 else ():
                x = hidden[row].astype(np.float64)
                output[row] += scale * (b.astype(np.float64) @ (a.astype(np.float64) @ x))
    return found


def linear(
    hidden: NDArray[np.float32],
    packed: NDArray[np.uint8],
    sizes: Sequence[int],
    fmt: str,
    groups: int = 1,
    byte_rows: bool = False,
    bf16_rows: bool = False,
) -> list[NDArray[np.float64]]:
    """Outputs `[.., size]` of every size, from the inputs and attributes of Linear.

    Args:
        byte_rows: whether rows are rounded to 8 bits, as some instruction sets do with `row_bits` 8.
        bf16_rows: whether rows are rounded to bf16, as with `row_bits` 16 and weights of bf16.
    """
    inputs, outputs, first = hidden.shape[-1], [], 0
    rows = (bf16_values(bf16_bits(hidden)) if bf16_rows else hidden).astype(np.float64)
    if byte_rows:
        rows = rounded_rows(rows, groups)
    for size in sizes:
        panels = -(-size // PANEL)
        part = packed[first : first + panels]
        first += panels
        if fmt in NUMBERS:
            outputs.append(rows @ unpack_numbers(part, size, inputs, fmt).T)
            continue
        values, scales, zero_points = unpack_linear(part, size, inputs, groups, fmt)
        factors: list[NDArray[Any]] = [
            each.astype(np.float64).repeat(inputs // groups, 1) for each in (zero_points, scales)
        ]
        outputs.append(rows @ ((values - factors[0]) * factors[1]).T)
    return outputs
