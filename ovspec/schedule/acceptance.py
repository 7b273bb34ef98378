"""Acceptance per position: how many draft tokens are offered and accepted, learned while drafts are verified.

Discounted Beta posteriors, one per position, as BanditSpec (arXiv 2505.15141) keeps statistics per arm; a
change is seen in a window of the last drafts, as for piecewise-stationary bandits (arXiv 1802.03692).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

# Drafts after which old ones have faded.
_MEMORY = 256
# Drafts in which a shift is looked for; also the steps between two such looks, the memory of how often a
# lookup offers a draft (a text begins to repeat itself suddenly), and the weight of earlier prompts.
WINDOW = 8
# Rate that a position has before any draft, and how many drafts this belief weighs.
_PRIOR_RATE, _PRIOR_DRAFTS = 0.6, 2.5
# A position never tried has the rate of the one before it, times this: drafts get longer step by step.
_FADING = 0.98
# Before any commit: all but one of so many provisional tokens are taken to have been confirmed.
_PRIOR_CONFIRMATIONS = 64.0
# A shift: the tokens accepted in the recent drafts are so many standard deviations off their expectation.
_SHIFT_DEVIATIONS = 3.5


class Rates:
    """Rates by position, of success after the positions before succeeded.

    Attributes:
        tried: drafts that the rate of each position rests on, old ones faded.
    """

    def __init__(self, positions: int, memory: int, prior: float, fading: float) -> None:
        self._kept, self.tried = [0.0] * positions, [0.0] * positions
        self._memory, self._prior, self._fading = memory, prior, fading

    def observe(self, kept: int, tried: int) -> None:
        """Take the positions up to the first that failed: `tried` of them, the first `kept` succeeded."""
        for i in range(tried):
            self._kept[i] += (i < kept) - self._kept[i] / self._memory
            self.tried[i] += 1.0 - self.tried[i] / self._memory

    def weaken(self, drafts: float) -> None:
        """Let what is known weigh so many drafts at most."""
        for i, total in enumerate(self.tried):
            if total > drafts:
                self._kept[i], self.tried[i] = self._kept[i] * drafts / total, drafts

    def means(self, positions: int) -> list[float]:
        """The rates of the first positions."""
        rates, prior = list[float](), self._prior
        for kept, total in zip(self._kept[:positions], self.tried[:positions], strict=True):
            rates.append((kept + _PRIOR_DRAFTS * prior) / (total + _PRIOR_DRAFTS))
            prior = self._fading * rates[-1]
        return rates


class AcceptanceModel:
    """Rates by position: a_i of accepting draft token i after i - 1 were, o_i of its being offered.

    A drafter that looks tokens up offers as many as it finds, so the length of its drafts is learned like
    their acceptance.

    Args:
        positions: longest draft.

    Attributes:
        accepted: a_i, from the drafts since the last shift.
        offered: o_i.
    """

    def __init__(self, positions: int) -> None:
        self.accepted = Rates(positions, _MEMORY, _PRIOR_RATE, _FADING)
        self.offered = Rates(positions, WINDOW, 1.0, 1.0)
        self._recent: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def accepted_length(self, positions: int) -> float:
        """Expected accepted tokens of a draft of so many."""
        return float(np.cumprod(self.accepted.means(positions)).sum())

    def begin(self) -> None:
        """Before another prompt: what is known shall weigh little."""
        self.accepted.weaken(WINDOW)
        self._recent.clear()

    def observe(self, asked: int, proposed: int, accepted: int) -> None:
        """Take a draft of `proposed` tokens, where `asked` were wanted; the first `accepted` held."""
        self.offered.observe(proposed, min(asked, proposed + 1))
        if proposed:
            self.accepted.observe(accepted, min(proposed, accepted + 1))
            self._recent.append((proposed, accepted))

    def shift(self) -> bool:
        """Compare the last drafts with what was expected of them; if they differ, only they count."""
        if len(self._recent) < WINDOW:
            return False
        proposed, accepted = np.array(self._recent).T
        survival = np.cumprod(self.accepted.means(int(proposed.max())))
        means = np.cumsum(survival)[proposed - 1]
        squares = np.cumsum((2 * np.arange(1, len(survival) + 1) - 1) * survival)[proposed - 1]
        # A quarter of a token per draft more: rates near 0 and 1 shift by no single token.
        variance = np.sum(squares - means**2 + 1 / 16)
        if abs(np.sum(accepted - means)) <= _SHIFT_DEVIATIONS * math.sqrt(variance):
            return False
        self.accepted.weaken(0.0)
        for tokens, kept in self._recent:
            self.accepted.observe(kept, min(tokens, kept + 1))
        self._recent.clear()
        return True


class ConfirmationRates:
    """c: rate at which a dense pass confirms a provisional token after those before it, by sparse budget."""

    def __init__(self) -> None:
        self._rates: dict[float, tuple[float, float]] = {}

    def rate(self, scale: float) -> float:
        """The rate of a multiple of the configured budget."""
        return self._rates.setdefault(scale, (1.0 - 1.0 / _PRIOR_CONFIRMATIONS, _PRIOR_CONFIRMATIONS))[0]

    def observe(self, scale: float, rows: int, confirmed: int) -> None:
        """Take a commit of `rows` provisional tokens, the first `confirmed` of which held."""
        rate, total, tried = self.rate(scale), self._rates[scale][1], min(rows, confirmed + 1)
        self._rates[scale] = (rate * total + confirmed) / (total + tried), min(total + tried, _MEMORY)
