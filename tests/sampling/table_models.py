"""Targets and drafters that are tables of conditional distributions, and the law of their output.

Speculative decoding runs until three tokens are out. A chi-square test compares the counts of the 5 ** 3
possible outputs with the target's exact joint probabilities.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ovspec.sampling.sampling import Distribution

VOCAB = 5
LENGTH = 3
Context = tuple[int, ...]
Model = Callable[[Context], Distribution]


def table(seed: int, zeros: int = 0) -> Model:
    """Random conditional distributions; `zeros` tokens of each are left out of its support."""
    rng = np.random.default_rng(seed)
    rows: dict[Context, Distribution] = {}
    for length in range(LENGTH + 1):
        for context in itertools.product(range(VOCAB), repeat=length):
            ids = np.sort(rng.permutation(VOCAB)[zeros:])
            rows[context] = Distribution(rng.dirichlet(np.ones(ids.size)), ids if zeros else None)
    return lambda context: rows[context[:LENGTH]]


def dense(p: Distribution, size: int = VOCAB) -> NDArray[np.float64]:
    """Probabilities of all tokens."""
    return np.array([p.prob(token) for token in range(size)])


def opposed(model: Model) -> Model:
    """What the target holds likely, this drafter holds unlikely."""

    @functools.cache
    def draft(context: Context) -> Distribution:
        weights = (1 - dense(model(context))) ** 4
        return Distribution.from_probs(weights / weights.sum())

    return lambda context: draft(context[:LENGTH])


TARGET = table(1)
DRAFTERS = {
    "random": table(2),
    "opposed": opposed(TARGET),
    "the target": TARGET,
    "with zeros": table(3, zeros=3),
}


def exact_joint(target: Model) -> NDArray[np.float64]:
    joint = np.ones((VOCAB,) * LENGTH)
    for tokens in np.ndindex(joint.shape):
        for i, token in enumerate(tokens):
            joint[tokens] *= target(tokens[:i]).prob(token)
    return joint


def p_value(outputs: list[Context], joint: NDArray[np.float64]) -> float:
    """Chi-square test of the outputs against their joint law; rare outputs share one cell."""
    counts = np.zeros(joint.shape)
    for tokens in outputs:
        counts[tokens] += 1
    assert not counts[joint == 0].any(), "an impossible output came out"
    expected = joint * len(outputs)
    rare = expected < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 8:
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    return float(stats.chisquare(observed, expected).pvalue)


def assert_exact(decode: Callable[[int], tuple[Context, int]]) -> None:
    """Draft trees are accepted, and what comes out has the target's joint law.

    Args:
        decode: the outputs of a run, and how many tokens of its trees were accepted.
    """
    outputs, accepted = zip(*(decode(run) for run in range(2000)), strict=True)
    assert sum(accepted) > 700
    assert p_value(list(outputs), exact_joint(TARGET)) > 1e-3


def assert_caught(decode: Callable[[int], tuple[Context, int]]) -> None:
    """What comes out of a wrong rule does not."""
    outputs = [decode(run)[0] for run in range(1000)]
    assert p_value(outputs, exact_joint(TARGET)) < 1e-6
