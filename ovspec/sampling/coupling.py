"""Coupled sampling: random numbers belong to positions, so that the text does not depend on the drafts.

The exponential race of arXiv 2408.07978: with independent E(x) ~ Exp(1), the token argmin_x E(x) / p(x)
follows p. At one position, drafter and target use the same E. A draft token is accepted if it is the target's
own token, and is replaced by that token otherwise. The output is always the target's own token, whatever was
drafted. Rules that accept more cannot promise that: `ovspec/drafters/README.md` has the figures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec.sampling.sampling import Distribution

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STREAM = 3


class Coupling:
    """Random numbers of one sequence as a function of position and token.

    Args:
        seed: seed of the call.
        sequence_index: gives the sequences of a call different numbers.
    """

    __slots__ = ("_key",)

    def __init__(self, seed: int, sequence_index: int = 0) -> None:
        words = np.random.SeedSequence(seed, spawn_key=(sequence_index, _STREAM))
        self._key = words.generate_state(1, np.uint64)

    def exponentials(self, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """E(x) of the token ids at a position, float64 `[ids]`."""
        key = _mixed(self._key + np.array([position + 1], np.uint64) * _GOLDEN)
        bits = _mixed(key + (ids.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        # Midpoints of 2**53 equal steps: never 0 or 1.
        uniform: NDArray[np.float64] = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return -np.log(uniform)

    def draw(self, p: Distribution, position: int) -> int:
        """The token of `p` at a position."""
        ids = np.arange(p.probs.size) if p.ids is None else p.ids
        with np.errstate(divide="ignore"):
            race = self.exponentials(position, ids) / p.probs
        return int(ids[race.argmin()])


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64; uint64 arrays wrap."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed
