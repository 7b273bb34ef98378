"""How many draft tokens are offered and accepted, learned while drafts are verified."""

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
# What the first draft of all is expected to do: a prior of this strength and mean.
_PRIOR_DRAFTS = 2.0
_PRIOR_RATE = 0.6
# Rate at which provisional tokens are taken to be confirmed before any was.
_PRIOR_CONFIRMED = 0.99
# Provisional tokens that the first belief in their rate of confirmation weighs, and that it fades after.
_PRIOR_CONFIRMATIONS = 30.0
_CONFIRMATION_MEMORY = 512
# Drafts by which a position's rate leans on that of the position before it.
_LEAN = 3.0
# What acceptance is believed to lose from one position to the next before anything is known: so drafts
# get longer step by step.
_FADING = 0.98
# A shift is seen in the last 3 drafts, or 6, or 12, when their sum is this many deviations off.
_SHIFT_WINDOWS = (3, 6, 12)
_SHIFT_DEVIATIONS = 3.5

Array = NDArray[np.float64]


class AcceptanceModel:
    """Rates by position: a_i of accepting draft token i after i - 1 were, o_i of its being offered.

    Both are discounted Beta posteriors. A drafter that looks tokens up offers as many as it finds, so
    the length of its drafts is learned like their acceptance.

    Args:
        positions: longest draft.
    """

    def __init__(self, positions: int) -> None:
        self._accepted = [0.0] * positions
        self._tried = [0.0] * positions
        self._offered = [0.0] * positions
        self._asked = [0.0] * positions
        self._recent: deque[tuple[int, int]] = deque(maxlen=max(_SHIFT_WINDOWS))

    def rates(self, positions: int) -> Array:
        """a_1 .. a_K; positions never tried go on from the last one that was, f64 `[positions]`."""
        return _posterior(self._accepted[:positions], self._tried[:positions], _PRIOR_RATE, _FADING)

    def offers(self, positions: int) -> Array:
        """o_1 .. o_K, f64 `[positions]`."""
        return _posterior(self._offered[:positions], self._asked[:positions], 1.0, 1.0)

    def accepted_length(self, positions: int) -> float:
        """Expected accepted tokens of a draft of so many."""
        return float(np.cumprod(self.rates(positions)).sum())

    @property
    def drafts(self) -> float:
        """Drafts that the rates rest on: those since the last shift, old ones faded."""
        return self._tried[0]

    def weaken(self, drafts: float) -> None:
        """Let what is known weigh at most this many drafts, as before another prompt."""
        for counts, totals in ((self._accepted, self._tried), (self._offered, self._asked)):
            for i, total in enumerate(totals):
                if total > drafts:
                    counts[i] *= drafts / total
                    totals[i] = drafts
        self._recent.clear()

    def observe(self, asked: int, proposed: int, accepted: int) -> None:
        """Take a draft of `proposed` tokens, where `asked` were wanted; the first `accepted` held."""
        _count(self._offered, self._asked, proposed, min(asked, proposed + 1), _OFFER_MEMORY)
        if proposed:
            _count(self._accepted, self._tried, accepted, min(proposed, accepted + 1))
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
                if abs(excess) > _SHIFT_DEVIATIONS * math.sqrt(square + 0.0625 * window):
                    self._restart(last)
                    return "up" if excess > 0 else "down"
        return None

    def _restart(self, drafts: list[tuple[int, int]]) -> None:
        self._accepted[:] = self._tried[:] = [0.0] * len(self._tried)
        for proposed, accepted in drafts:
            _count(self._accepted, self._tried, accepted, min(proposed, accepted + 1))
        self._recent.clear()

    def _expected(self, longest: int) -> tuple[Array, Array]:
        """Mean and variance of the accepted tokens by draft length."""
        survival = np.cumprod(self.rates(longest))
        means = np.concatenate([[0.0], np.cumsum(survival)])
        squares = np.cumsum((2 * np.arange(1, longest + 1) - 1) * survival)
        return means, np.concatenate([[0.0], squares]) - means**2


class ConfirmationRate:
    """c: rate at which a dense pass confirms a provisional token whose predecessors it confirmed.

    Args:
        prior: the rate to start from.
    """

    def __init__(self, prior: float) -> None:
        self._confirmed, self._tried = prior * _PRIOR_CONFIRMATIONS, _PRIOR_CONFIRMATIONS

    @property
    def rate(self) -> float:
        """The rate, 0 to 1."""
        return self._confirmed / self._tried

    def observe(self, rows: int, confirmed: int) -> None:
        """Take a commit of `rows` provisional tokens, the first `confirmed` of which held."""
        tried = min(rows, confirmed + 1)
        decay = (1.0 - 1.0 / _CONFIRMATION_MEMORY) ** tried
        self._confirmed = self._confirmed * decay + confirmed
        self._tried = self._tried * decay + tried


class ConfirmationRates:
    """Rates of confirmation by sparse budget; a budget never tried starts from the best that was."""

    def __init__(self) -> None:
        self._rates: dict[float, ConfirmationRate] = {}

    def at(self, scale: float) -> ConfirmationRate:
        """The rate of a multiple of the configured budget."""
        if scale not in self._rates:
            known = [rate.rate for rate in self._rates.values()]
            self._rates[scale] = ConfirmationRate(max(known, default=_PRIOR_CONFIRMED))
        return self._rates[scale]


def _count(counts: list[float], totals: list[float], kept: int, tried: int, memory: int = _MEMORY) -> None:
    decay = 1.0 - 1.0 / memory
    for i in range(tried):
        counts[i] = counts[i] * decay + (i < kept)
        totals[i] = totals[i] * decay + 1.0


def _posterior(counts: list[float], totals: list[float], prior: float, fading: float) -> Array:
    rates, mean, strength = [], prior, _PRIOR_DRAFTS
    for count, total in zip(counts, totals, strict=True):
        mean = (count + strength * mean) / (total + strength)
        rates.append(mean)
        strength, mean = _LEAN, fading * mean
    return np.array(rates)
