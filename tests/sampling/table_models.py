"""Targets and drafters that are tables of conditional distributions, and the law of their output.

Speculative decoding runs until three tokens are out. A chi-square test compares the counts of the 5 ** 3
possible outputs with the target's exact joint probabilities.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ovspec.sampling.acceptance import Accepted, RandomStreams
from ovspec.sampling.sampling import Distribution

VOCAB = 5
LENGTH = 3
Context = tuple[int, ...]
Model = Callable[[Context], Distribution]
Rule = Callable[
    [Sequence[int], "Sequence[Distribution | None] | None", Callable[[int], Distribution], RandomStreams],
    Accepted,
]


def table(seed: int, concentration: float, zeros: int = 0) -> Model:
    """Random conditional distributions; `zeros` tokens of each are left out of its support."""
    rng = np.random.default_rng(seed)
    rows: dict[Context, Distribution] = {}
    # Drafts may run past the last counted token.
    for length in range(LENGTH + 4):
        for context in itertools.product(range(VOCAB), repeat=min(length, LENGTH)):
            ids = np.sort(rng.permutation(VOCAB)[zeros:])
            probs = rng.dirichlet(np.full(ids.size, concentration))
            rows.setdefault(context, Distribution(probs, ids if zeros else None))
    return lambda context: rows[context[:LENGTH]]


def opposed(model: Model) -> Model:
    """What the target holds likely, this drafter holds unlikely."""

    @functools.cache
    def draft(context: Context) -> Distribution:
        weights = (1 - model(context).dense(VOCAB)) ** 4
        return Distribution.from_probs(weights / weights.sum())

    return lambda context: draft(context[:LENGTH])


@dataclass
class Case:
    target: Model
    drafter: Model
    k: int = 3
    reports: Callable[[int], bool] = lambda position: True
    argmax: bool = False


TARGET = table(1, 1.0)
CASES = {
    "random_q": Case(TARGET, table(2, 1.0)),
    "one_draft_token": Case(TARGET, table(2, 1.0), k=1),
    "long_draft": Case(TARGET, table(2, 1.0), k=5),
    "opposed_q": Case(TARGET, opposed(TARGET)),
    "q_equals_p": Case(TARGET, TARGET),
    "q_with_zeros": Case(TARGET, table(3, 1.0, zeros=3)),
    "p_with_zeros": Case(table(4, 1.0, zeros=2), table(5, 1.0)),
    "disjoint_zeros": Case(table(4, 1.0, zeros=2), table(6, 1.0, zeros=3)),
    "peaked_p": Case(table(7, 0.15), table(8, 1.0)),
    "argmax_without_q": Case(TARGET, table(2, 1.0), reports=lambda position: False, argmax=True),
    "opposed_argmax_without_q": Case(TARGET, opposed(TARGET), reports=lambda position: False, argmax=True),
    "drawn_without_q": Case(TARGET, table(2, 1.0), reports=lambda position: False),
    "q_for_some_positions": Case(TARGET, table(2, 1.0), reports=lambda position: position % 2 == 0),
}


def decode(case: Case, rule: Rule, streams: RandomStreams) -> Context:
    """First tokens of one sequence, by rounds of drafting and acceptance."""
    context: Context = ()
    while len(context) < LENGTH:
        draft: Context = ()
        q: list[Distribution | None] = []
        for position in range(case.k):
            q_i = case.drafter(context + draft)
            uniform = streams.draft.random()
            draft += (int(q_i.dense(VOCAB).argmax()) if case.argmax else q_i.sample(uniform),)
            q.append(q_i if case.reports(position) else None)
        accepted = rule(draft, q, lambda i, c=context, d=draft: case.target(c + d[:i]), streams)  # type: ignore[misc]
        context += (*draft[: accepted.n], accepted.next_token)
    return context[:LENGTH]


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


def p_value_of(case: Case, rule: Rule, runs: int = 5000) -> float:
    outputs = [decode(case, rule, RandomStreams(2024, run)) for run in range(runs)]
    return p_value(outputs, exact_joint(case.target))
