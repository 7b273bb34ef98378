"""Acceptance per position: how many draft tokens are offered and accepted, learned while drafts are verified.

Discounted Beta posteriors, one per position, as BanditSpec (arXiv 2505.15141) keeps statistics per arm; a
change is seen in a window of the last drafts, as for piecewise-stationary bandits (arXiv 1802.03692).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shift = Literal["down", "up"]

# Drafts after which old ones have faded; a shift forgets them at once.
_MEMORY = 256
# Offers are soon forgotten: a text begins to repeat itself from one sentence to the next.
_OFFER_MEMORY = 8
# What the first draft of all is expected to do, and how many drafts this weighs.
_PRIOR_RATE = 0.6
_PRIOR_DRAFTS = 2.0
# Drafts by which a position's rate leans on that of the position before it.
_LEAN = 3.0
# What acceptance is believed to lose from one position to the next: so drafts get longer step by step.
_FADING = 0.98
# Rate at which provisional tokens are taken to be confirmed before any was, and how many of them this weighs.
_PRIOR_CONFIRMED = 0.99
_PRIOR_CONFIRMATIONS = 30.0
# A shift is seen in the last drafts, few or more, when their sum is this many deviations off.
_SHIFT_WINDOWS = (3, 6, 12)
_SHIFT_DEVIATIONS = 3.5

Array = NDArray[np.float64]


class _Rates:
    """Rates by position, of success after the positions before succeeded."""

    def __init__(self, positions: int, memory: int, prior: float, fading: float) -> None:
        self._kept, self.tried = [0.0] * positions, [0.0] * positions
        self._decay, self._prior, self._fading = 1.0 - 1.0 / memory, prior, fading

    def observe(self, kept: int, tried: int) -> None:
        for i in range(tried):
            self._kept[i] = self._kept[i] * self._decay + (i < kept)
            self.tried[i] = self.tried[i] * self._decay + 1.0

    def weaken(self, drafts: float) -> None:
        for i, total in enumerate(self.tried):
            if total > drafts:
                self._kept[i], self.tried[i] = self._kept[i] * drafts / total, drafts

    def means(self, positions: int) -> Array:
        """Positions never tried go on from the last one that was."""
        rates, mean, weight = [], self._prior, _PRIOR_DRAFTS
        for kept, total in zip(self._kept[:positions], self.tried[:positions], strict=True):
            mean = (kept + weight * mean) / (total + weight)
            rates.append(mean)
            weight, mean = _LEAN, self._fading * mean
        return np.array(rates)


class AcceptanceModel:
    """Rates by position: a_i of accepting draft token i after i - 1 were, o_i of its being offered.

    A drafter that looks tokens up offers as many as it finds, so the length of its drafts is learned like
    their acceptance.

    Args:
        positions: longest draft.
    """

    def __init__(self, positions: int) -> None:
        self._accepted = _Rates(positions, _MEMORY, _PRIOR_RATE, _FADING)
        self._offered = _Rates(positions, _OFFER_MEMORY, 1.0, 1.0)
        self._recent: deque[tuple[int, int]] = deque(maxlen=_SHIFT_WINDOWS[-1])

    def rates(self, positions: int) -> Array:
        """a_1 .. a_K, f64 `[positions]`."""
        return self._accepted.means(positions)

    def offers(self, positions: int) -> Array:
        """o_1 .. o_K, f64 `[positions]`."""
        return self._offered.means(positions)

    def accepted_length(self, positions: int) -> float:
        """Expected accepted tokens of a draft of so many."""
        return float(np.cumprod(self.rates(positions)).sum())

    @property
    def drafts(self) -> float:
        """Drafts that the rates rest on: those since the last shift, old ones faded."""
        return self._accepted.tried[0]

    def weaken(self, drafts: float) -> None:
        """Let what is known weigh at most this many drafts, as before another prompt."""
        self._accepted.weaken(drafts)
        self._offered.weaken(drafts)
        self._recent.clear()

    def observe(self, asked: int, proposed: int, accepted: int) -> None:
        """Take a draft of `proposed` tokens, where `asked` were wanted; the first `accepted` held."""
        self._offered.observe(proposed, min(asked, proposed + 1))
        if proposed:
            self._accepted.observe(accepted, min(proposed, accepted + 1))
            self._recent.append((proposed, accepted))

    def shift(self) -> Shift | None:
        """Compare the last drafts with what was expected of them; where they differ, keep only them."""
        drafts = list(self._recent)
        if len(drafts) < _SHIFT_WINDOWS[0]:
            return None
        means, variances = self._expected(max(proposed for proposed, _ in drafts))
        first = float(self.rates(1)[0])
        for window in _SHIFT_WINDOWS:
            last = drafts[-window:]
            if len(last) < window:
                break
            tokens = sum(accepted - means[proposed] for proposed, accepted in last)
            starts = sum((accepted > 0) - first for _, accepted in last)
            variance = sum(variances[proposed] for proposed, _ in last)
            # How many tokens stand says more where drafts are short, whether any does where they are long.
            for excess, square in ((tokens, variance), (starts, window * first * (1.0 - first))):
                # A quarter of a token per draft: rates near 0 and 1 shift by no single token.
                if abs(excess) > _SHIFT_DEVIATIONS * math.sqrt(square + window / 16):
                    self._accepted.weaken(0.0)
                    for proposed, accepted in last:
                        self._accepted.observe(accepted, min(proposed, accepted + 1))
                    self._recent.clear()
                    return "up" if excess > 0 else "down"
        return None

    def _expected(self, longest: int) -> tuple[Array, Array]:
        """Mean and variance of the accepted tokens by draft length."""
        survival = np.cumprod(self.rates(longest))
        means = np.concatenate([[0.0], np.cumsum(survival)])
        squares = np.cumsum((2 * np.arange(1, longest + 1) - 1) * survival)
        return means, np.concatenate([[0.0], squares]) - means**2


class ConfirmationRates:
    """c: rate at which a dense pass confirms a provisional token after those before it, by sparse budget."""

    def __init__(self) -> None:
        self._counts: dict[float, tuple[float, float]] = {}

    def rate(self, scale: float) -> float:
        """The rate of a multiple of the configured budget; one never tried starts from the best that was."""
        if scale not in self._counts:
            prior = max((kept / tried for kept, tried in self._counts.values()), default=_PRIOR_CONFIRMED)
            self._counts[scale] = prior * _PRIOR_CONFIRMATIONS, _PRIOR_CONFIRMATIONS
        kept, tried = self._counts[scale]
        return kept / tried

    def observe(self, scale: float, rows: int, confirmed: int) -> None:
        """Take a commit of `rows` provisional tokens, the first `confirmed` of which held."""
        self.rate(scale)
        (kept, total), tried = self._counts[scale], min(rows, confirmed + 1)
        decay = (1.0 - 1.0 / _MEMORY) ** tried
        self._counts[scale] = kept * decay + confirmed, total * decay + tried
