"""One comparison for all operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.common.byte_values import ISAS

# Instruction sets that round rows to 8 bits where an operation's `row_bits` is 8, the lowered one too.
ROUNDS = (*ISAS, "avx2dot")
# A value in the middle between two integers may fall to either; not rounding at all is off by some 1e-2.
ROUNDED_TOLERANCE = 1e-3


# The largest error, by the largest output, of a row in which one value became the neighbouring integer.
_ONE_STEP = 1e-2


def without_a_step(
    reference: NDArray[Any], got: NDArray[Any], weights: NDArray[Any], tolerance: float
) -> NDArray[Any]:
    """What was got, less one step of one value in one row at most: a multiple of that value's weights.

    Args:
        reference, got: `[rows, outputs]`.
        weights: `[outputs, values]` of the values that were rounded.
    """
    largest = float(np.abs(reference).max())
    differs = got - reference.astype(np.float64)
    row = int(np.abs(differs).max(1).argmax())
    error = float(np.abs(differs[row]).max())
    if not tolerance * largest < error <= _ONE_STEP * largest:
        return got
    along = differs[row] @ weights / np.maximum((weights**2).sum(0), 1e-30)
    left = np.abs(differs[row][:, None] - weights * along).max(0)
    value = int(left.argmin())
    corrected = got.astype(np.float64)
    corrected[row] -= weights[:, value] * along[value]
    return corrected


def assert_close(name: str, reference: NDArray[Any], got: NDArray[Any], tolerance: float = 1e-5) -> None:
    """Largest difference relative to the largest reference value; NaN and another shape never pass."""
    assert got.shape == reference.shape, f"{name}: shape {got.shape}, expected {reference.shape}"
    largest = max(float(np.abs(reference).max(initial=0.0)), 1e-30)
    error = float(np.abs(got.astype(np.float64) - reference).max(initial=0.0)) / largest
    assert error <= tolerance, f"{name}: relative error {error:.2e} above {tolerance:.0e}"
