"""Estimates with their 95% intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 4000
_Z = 1.959964  # of a normal distribution, 95% between

Figures = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of_share(cls, hits: int, total: int) -> Interval:
        """A share, with Wilson's interval."""
        share, spread = hits / total, _Z * _Z / total
        middle = (share + spread / 2) / (1 + spread)
        half = _Z * np.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
        # Rounding must not put the estimate outside.
        return cls(share, min(share, float(middle - half)), max(share, float(middle + half)))

    @classmethod
    def of_paired(
        cls,
        ours: Sequence[float],
        theirs: Sequence[float],
        statistic: Callable[[Figures, Figures], Figures],
    ) -> Interval:
        """A statistic of paired figures `[..., examples]`, with its bootstrap interval over the examples."""
        pairs = np.array([ours, theirs], float)
        rng = np.random.default_rng(0)
        drawn = pairs[:, rng.integers(pairs.shape[1], size=(_RESAMPLES, pairs.shape[1]))]
        low, high = np.percentile(statistic(*drawn), [2.5, 97.5])
        return cls(float(statistic(*pairs)), float(low), float(high))

    def shown(self, form: str) -> str:
        """The estimate and the ends of the interval, each in a format."""
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"
