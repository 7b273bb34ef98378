"""Estimates with their 95% intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_RESAMPLES = 4000
_VALUES = 2**21  # that are drawn at a time
_Z = 1.959964  # of a normal distribution, 95% between


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
        # Rounding must not put the estimate outside, nor an end beyond 0 or 1.
        low, high = max(0.0, float(middle - half)), min(1.0, float(middle + half))
        return cls(share, min(share, low), max(share, high))

    @classmethod
    def bootstrap(cls, statistic: Callable[..., Any], *figures: Sequence[float]) -> Interval:
        """A statistic with its bootstrap interval over the examples, with a fixed seed.

        Args:
            statistic: called with an array `[..., examples]` for each of `figures`; gives `[...]`.
            figures: one number of every example each; what belongs to one example is drawn together.
        """
        values = np.array(figures, np.float64)
        examples, random, found = values.shape[1], np.random.default_rng(0), []
        # Some at a time: those of ten thousand examples together take gigabytes, at the end of a long run.
        some = max(1, _VALUES // values.size)
        for begin in range(0, _RESAMPLES, some):
            drawn = random.integers(examples, size=(min(some, _RESAMPLES - begin), examples))
            found.append(statistic(*values[:, drawn]))
        low, high = np.percentile(np.concatenate(found), [2.5, 97.5])
        return cls(float(statistic(*values)), float(low), float(high))

    @classmethod
    def of_mean(cls, figures: Sequence[float]) -> Interval:
        """Their mean."""
        return cls.bootstrap(lambda drawn: drawn.mean(axis=-1), figures)

    @classmethod
    def of_median(cls, figures: Sequence[float]) -> Interval:
        """Their median."""
        return cls.bootstrap(lambda drawn: np.median(drawn, axis=-1), figures)

    def shown(self, form: str) -> str:
        """The estimate and the ends of the interval, each in a format; one example alone has no interval."""
        if self.low == self.high:
            return f"{self.value:{form}}"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"
