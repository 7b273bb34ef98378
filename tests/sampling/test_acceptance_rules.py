"""The rules that `tools/demo/acceptance_rules.py` compares, by exact laws over few tokens."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ovspec.sampling.coupling import Coupling
from ovspec.sampling.sampling import Distribution

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "demo"))

from acceptance_rules import RULES, block, coupled, token_wise

LENGTH, VOCAB = 3, 3
Law = NDArray[np.float64]


def conditional(seed: int) -> dict[tuple[int, ...], Law]:
    """A model: after every path of up to `LENGTH` tokens a law of the next; one token may be impossible."""
    rng, found = np.random.default_rng(seed), dict[tuple[int, ...], Law]()
    for count in range(LENGTH + 1):
        for path in itertools.product(range(VOCAB), repeat=count):
            law = rng.dirichlet(np.ones(VOCAB))
            if rng.random() < 0.2:
                law[rng.integers(VOCAB)] = 0
            found[path] = law / law.sum()
    return found


P, Q = conditional(1), conditional(2)


def along(model: dict[tuple[int, ...], Law], path: tuple[int, ...]) -> Law:
    return np.stack([model[path[:place]] for place in range(len(path))])


def drafts() -> list[tuple[tuple[int, ...], float]]:
    """Every draft with its probability."""
    paths = itertools.product(range(VOCAB), repeat=LENGTH)
    found = [(path, float(np.prod([Q[path[:i]][x] for i, x in enumerate(path)]))) for path in paths]
    return [(path, probability) for path, probability in found if probability > 0]


def test_the_papers_example() -> None:
    """Two models without memory over two tokens (arXiv 2403.10444, figure 1): 10/9 and 11/9 of two tokens."""
    p, q = np.array([[1 / 3, 2 / 3]] * 2), np.array([[2 / 3, 1 / 3]] * 2)
    for rule, expected in ((token_wise, 10 / 9), (block, 11 / 9)):
        paths = itertools.product(range(2), repeat=2)
        found = sum(q[0, a] * q[1, b] * rule(p, q, (a, b)) for a, b in paths)
        assert found == pytest.approx(expected, abs=1e-12)


def test_block_accepts_no_fewer_than_token_wise_and_that_no_fewer_than_coupled() -> None:
    means = {
        name: sum(probability * rule(along(P, path), along(Q, path), path) for path, probability in drafts())
        for name, rule in RULES.items()
    }
    assert means["block"] > means["token-wise"] + 0.01 > means["coupled"] + 0.02


def test_coupled_is_what_coupled_draws_accept() -> None:
    expected = sum(
        probability * coupled(along(P, path), along(Q, path), path) for path, probability in drafts()
    )
    accepted, runs = np.zeros(6_000), 6_000
    for run in range(runs):
        coupling, path = Coupling(run), tuple[int, ...]()
        while len(path) < LENGTH:
            p, q = Distribution(P[path]), Distribution(Q[path])
            if coupling.draw(p, len(path)) != (token := coupling.draw(q, len(path))):
                break
            path = (*path, token)
        accepted[run] = len(path)
    assert abs(accepted.mean() - expected) < 4 * accepted.std() / runs**0.5
    assert abs(accepted.mean() - expected - 0.1) > 4 * accepted.std() / runs**0.5
