"""NumPy reference of rows as 8-bit integers (see byte_values.hpp)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUP = 32  # values of a scale
# Instruction sets that round rows so where an operation's `row_bits` is 8; the others are more exact.
ISAS = ("avx512vnni", "avx2vnni")


def round_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """`[.., n]` as the kernel rounds them to 8 bits with a scale for every n.

    To the nearest integers, ties to even, of a 127th of their largest magnitude, in f32.
    """
    unit = (np.abs(values).max(-1, keepdims=True).astype(np.float32) / np.float32(127)).astype(np.float32)
    inverse = np.zeros_like(unit)
    np.divide(np.float32(1), unit, out=inverse, where=unit >= np.float32(1e-37))
    return np.asarray(np.rint(values * inverse.astype(np.float64)) * unit)
