"""Acceptance: how likely the tokens of a draft are, learned while drafts are verified.

A lookup's match is evidence in itself: the longer it is, the more is accepted behind it, and behind i
accepted tokens it is i tokens longer. So one rate by length of the match says how likely every token of a
draft is. What a model drafts has a rate by position. Rates are discounted Beta posteriors, as BanditSpec
(arXiv 2505.15141) keeps them per arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# Observations after which old ones have faded, and how many a belief weighs: of lookups, which change with
# the text, and of models.
_LOOKUPS, _MODELS = (32.0, 16.0), (64.0, 2.5)
# Rates behind matches of 1, 2, 3, from 4, 8, 16 and 32 tokens on: of a small model's answers to Spec-Bench.
_BY_MATCH = (0.3, 0.5, 0.6, 0.75, 0.85, 0.93, 0.97)
_OF_MODEL = 0.6


class Rates:
    """Rates of success by index.

    Args:
        priors: believed before any observation; an index beyond the last is believed to have the rate of the
            index before it.
        memory: observations after which old ones have faded.
        weight: of a belief, in observations.
    """

    def __init__(self, priors: Sequence[float], memory: float, weight: float) -> None:
        self._priors, self._fading, self._weight = tuple(priors), 1.0 - 1.0 / memory, weight
        self._seen = list[tuple[float, float]]()  # successes and observations

    def rates(self, count: int) -> list[float]:
        """The rates of the first indices."""
        found = list[float]()
        for index in range(count):
            prior = self._priors[index] if index < len(self._priors) else found[-1]
            kept, tried = self._seen[index] if index < len(self._seen) else (0.0, 0.0)
            found.append((kept + self._weight * prior) / (tried + self._weight))
        return found

    def observe(self, index: int, success: bool) -> None:
        """Take one observation."""
        self._seen += [(0.0, 0.0)] * (index + 1 - len(self._seen))
        kept, tried = self._seen[index]
        self._seen[index] = self._fading * kept + success, self._fading * tried + 1.0

    def fade(self) -> None:
        """A step without an observation: what failed long ago is tried again at some time."""
        self._seen = [(self._fading * kept, self._fading * tried) for kept, tried in self._seen]


class AcceptanceModel:
    """How likely the tokens of lookups and of models are.

    Attributes:
        model: rates of a model's tokens by position.
        confirmed: rate at which a dense pass confirms a provisional token.
    """

    def __init__(self) -> None:
        self._lookups, self.model = Rates(_BY_MATCH, *_LOOKUPS), Rates((_OF_MODEL,), *_MODELS)
        memory, weight = _MODELS  # a commit is some four observations
        self.confirmed = Rates(_BY_MATCH[-1:], 4 * memory, weight)

    def likely(self, match: int, tokens: int) -> list[float]:
        """Probability of coming to each token of a draft; `match` is 0 for one of a model."""
        if not match:
            return list(accumulate(self.model.rates(tokens), mul))
        rates = self._lookups.rates(len(_BY_MATCH))
        return list(accumulate((rates[_index(match + place)] for place in range(tokens)), mul))

    def observe(self, match: int, judged: int, accepted: int) -> None:
        """Take a draft, of which `judged` tokens were compared and the first `accepted` held."""
        for place in range(min(judged, accepted + 1)):
            rates, index = (self._lookups, _index(match + place)) if match else (self.model, place)
            rates.observe(index, place < accepted)

    def observe_commit(self, rows: int, confirmed: int) -> None:
        """Take a commit of `rows` provisional tokens, the first `confirmed` of which held."""
        for place in range(min(rows, confirmed + 1)):
            self.confirmed.observe(0, place < confirmed)


def _index(match: int) -> int:
    """1, 2, 3, from 4, 8, 16 and 32 on."""
    return match - 1 if match < 4 else min(match.bit_length(), len(_BY_MATCH) - 1)
