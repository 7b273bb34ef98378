"""One comparison for all operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def assert_close(name: str, reference: NDArray[Any], got: NDArray[Any], tolerance: float = 1e-5) -> None:
    """Largest difference relative to the largest reference value; NaN and another shape never pass."""
    assert got.shape == reference.shape, f"{name}: shape {got.shape}, expected {reference.shape}"
    largest = max(float(np.abs(reference).max(initial=0.0)), 1e-30)
    error = float(np.abs(got.astype(np.float64) - reference).max(initial=0.0)) / largest
    assert error <= tolerance, f"{name}: relative error {error:.2e} above {tolerance:.0e}"
