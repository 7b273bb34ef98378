"""NumPy reference of Linear, in f64 (see README.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.linear.layout import PANEL, unpack_linear


def linear(
    hidden: NDArray[np.float32], packed: NDArray[np.uint8], sizes: Sequence[int], fmt: str, groups: int
) -> list[NDArray[np.float64]]:
    """Outputs `[.., size]` of every size, from the inputs and attributes of Linear."""
    inputs, outputs, first = hidden.shape[-1], [], 0
    for size in sizes:
        panels = -(-size // PANEL)
        values, scales, zero_points = unpack_linear(packed[first : first + panels], size, inputs, groups, fmt)
        first += panels
        repeat = inputs // groups
        factors: list[NDArray[Any]] = [
            part.astype(np.float64).repeat(repeat, 1) for part in (zero_points, scales)
        ]
        outputs.append(hidden.astype(np.float64) @ ((values - factors[0]) * factors[1]).T)
    return outputs
