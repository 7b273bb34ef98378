"""The search alone, over tables of log probabilities: what it finds, and when it ends."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from openvino_genai import StopCriteria

from ovspec.sampling.beam_search import BeamParams, BeamSearch, Ended, Hypothesis, log_softmax
from ovspec.sampling.sampling import NotFiniteError

VOCAB, STOP = 5, 0


def row_behind(tokens: list[int], seed: int) -> NDArray[np.float32]:
    """Log probabilities that depend on all tokens before."""
    rng = np.random.default_rng([seed, *tokens])
    return log_softmax(rng.normal(0, 1.5, VOCAB).astype(np.float32))


def tokens_of(hypothesis: Hypothesis) -> list[int]:
    return [step.token for step in hypothesis.path]


def searched(params: BeamParams, limit: int, seed: int) -> list[Ended]:
    search = BeamSearch.start(params, limit, 1)
    while search.live:
        assert len(search.live) <= params.num_beams
        rows = {beam: row_behind(tokens_of(beam), seed) for beam in search.live}
        search = search.step(rows, lambda parent, token: token == STOP)
    return search.ended


def every_answer(params: BeamParams, limit: int, seed: int) -> dict[tuple[int, ...], float]:
    """Scores of all that could be answered."""
    found = {}
    for length in range(1, limit + 1):
        for tokens in product(range(VOCAB), repeat=length):
            if STOP in tokens[:-1] or (length < limit and tokens[-1] != STOP):
                continue
            total = sum(float(row_behind(list(tokens[:at]), seed)[tokens[at]]) for at in range(length))
            found[tokens] = params.score(total, length)
    return found


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -0.7, 2.5])
@pytest.mark.parametrize("seed", range(4))
def test_with_enough_beams_the_best_of_all_answers_are_found(seed: int, length_penalty: float) -> None:
    params = BeamParams(300, length_penalty=length_penalty, stop_criteria=StopCriteria.NEVER)
    found, want = searched(params, 4, seed), every_answer(params, 4, seed)
    assert len(found) == 300
    best = sorted(want, key=lambda tokens: -want[tokens])[:300]
    assert [tuple(tokens_of(one.hypothesis)) for one in found] == best
    assert [one.score for one in found] == pytest.approx([want[tokens] for tokens in best], abs=1e-5)
    assert all(one.stopped == (tokens_of(one.hypothesis)[-1] == STOP) for one in found)


def test_one_beam_is_greedy() -> None:
    params = BeamParams(1, stop_criteria=StopCriteria.EARLY)
    (one,) = searched(params, 30, 3)
    tokens: list[int] = []
    while len(tokens) < 30 and (not tokens or tokens[-1] != STOP):
        tokens.append(int(row_behind(tokens, 3).argmax()))
    assert tokens_of(one.hypothesis) == tokens


@pytest.mark.parametrize("seed", range(6))
def test_stop_criteria_end_one_after_another(seed: int) -> None:
    """EARLY is over first, NEVER last; each later one finds no worse answers."""

    def steps_and_best(stop: StopCriteria) -> tuple[int, float]:
        search, steps = BeamSearch.start(BeamParams(3, stop_criteria=stop), 40, 1), 0
        while search.live:
            rows = {beam: row_behind(tokens_of(beam), seed) for beam in search.live}
            search, steps = search.step(rows, lambda parent, token: token == STOP), steps + 1
        return steps, search.ended[0].score

    order = [StopCriteria.EARLY, StopCriteria.HEURISTIC, StopCriteria.NEVER]
    steps, best = zip(*map(steps_and_best, order), strict=True)
    assert list(steps) == sorted(steps) and steps[0] < steps[-1]
    assert list(best) == sorted(best)


def test_groups_differ_where_the_penalty_is_large() -> None:
    search = BeamSearch.start(BeamParams(3, 3, diversity_penalty=100.0), 5, 1)
    rows = {beam: row_behind([], 1) for beam in search.live}
    search = search.step(rows, lambda parent, token: False)
    best = np.argsort(-row_behind([], 1))[:3].tolist()
    assert [beam.token for beam in search.live] == best
    assert [beam.sum_logprobs for beam in search.live] == pytest.approx(row_behind([], 1)[best].tolist())


def test_what_is_excluded_is_never_chosen_and_equal_ones_go_by_their_ids() -> None:
    row = np.full(VOCAB, -1.0, np.float32)
    row[[1, 3]] = -np.inf
    search = BeamSearch.start(BeamParams(4), 5, 1)
    search = search.step(dict.fromkeys(search.live, row), lambda parent, token: False)
    assert [beam.token for beam in search.live] == [0, 2, 4]
    nothing = np.full(VOCAB, -np.inf, np.float32)
    assert not search.step(dict.fromkeys(search.live, nothing), lambda parent, token: False).live


@pytest.mark.parametrize("length_penalty", [1e30, -1e30])
def test_scores_of_huge_penalties_are_numbers(length_penalty: float) -> None:
    assert not np.isnan(BeamParams(2, length_penalty=length_penalty).score(-3.0, 7))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(wrong: float) -> None:
    with pytest.raises(NotFiniteError):
        log_softmax(np.array([0.0, wrong], np.float32))
