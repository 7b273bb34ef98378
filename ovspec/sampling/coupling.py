"""Coupled sampling: random numbers belong to positions, so that the text does not depend on the drafts.

The exponential race of arXiv 2408.07978: with independent E(x) ~ Exp(1), the token argmin_x E(x) / p(x)
follows p. At one position, drafter and target use the same E. A draft token is accepted if it is the target's
own token, and is replaced by that token otherwise. The output is always the target's own token, whatever was
drafted. Rules that accept more cannot promise that: see `block_verification.py`.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from ovspec.sampling.sampling import Distribution

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WHOLE = 2**64 - 1
_STREAM, _UNCOUPLED_STREAM = 3, 4


class Coupling:
    """Random numbers of one sequence as a function of position and token.

    Args:
        sequence_index: gives the sequences of a call different numbers.
        answered: tokens that an earlier sequence answered, with the numbers of their drafts.
    """

    def __init__(self, seed: int, sequence_index: int = 0, answered: int = 0) -> None:
        self._seed, self._sequence_index, self._answered = seed, sequence_index, answered

    @functools.cached_property
    def key(self) -> int:
        """Of the numbers of all positions, 64 bits.

        Made where numbers are drawn: a greedy call spares the first one of a process 10 ms of imports.
        """
        words = np.random.SeedSequence(self._seed, spawn_key=(self._sequence_index, _STREAM))
        return int(words.generate_state(1, np.uint64)[0])

    @functools.cached_property
    def uncoupled(self) -> np.random.Generator:
        """Numbers of no position, for drafts and their acceptance where these are not coupled."""
        key = (self._sequence_index, self._answered, _UNCOUPLED_STREAM)
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))

    def exponentials(self, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """E(x) of the token ids at a position, float64 `[ids]`."""
        bits = ids.astype(np.uint64)
        bits += np.uint64(1)
        bits *= np.uint64(_GOLDEN)
        bits += np.uint64(_mixed_number(self.key + (position + 1) * _GOLDEN))
        _mix(bits)
        # Midpoints of 2**53 equal steps: never 0 or 1.
        bits >>= np.uint64(11)
        uniform = bits.astype(np.float64)
        uniform += 0.5
        uniform *= 2.0**-53
        np.log(uniform, out=uniform)
        return np.negative(uniform, out=uniform)

    def draw(self, p: Distribution, position: int) -> int:
        """The token of `p` at a position."""
        ids = np.arange(p.probs.size) if p.ids is None else p.ids
        with np.errstate(divide="ignore"):
            race = self.exponentials(position, ids)
            race /= p.probs
        return int(ids[race.argmin()])


def _mix(bits: NDArray[np.uint64]) -> None:
    """The finaliser of SplitMix64, in place; uint64 arrays wrap."""
    shifted = bits >> np.uint64(30)
    bits ^= shifted
    bits *= np.uint64(_FIRST)
    np.right_shift(bits, np.uint64(27), out=shifted)
    bits ^= shifted
    bits *= np.uint64(_SECOND)
    np.right_shift(bits, np.uint64(31), out=shifted)
    bits ^= shifted


def _mixed_number(bits: int) -> int:
    """The same of one number, of which the lower 64 bits count."""
    bits &= _WHOLE
    bits = (bits ^ bits >> 30) * _FIRST & _WHOLE
    bits = (bits ^ bits >> 27) * _SECOND & _WHOLE
    return bits ^ bits >> 31
