"""Draft trees: which nodes they have, and the law of what comes out of them."""

from __future__ import annotations

import functools
import heapq
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openvino_genai import GenerationConfig
from sampling.table_models import DRAFTERS, LENGTH, TARGET, VOCAB, Context, assert_caught, assert_exact, dense
from tiers import by_tier

from ovspec.drafters.draft_tree import DraftTree
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.parallel_draft import parallel_draft
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.generation.sequence import Sequence
from ovspec.sampling.sampling import Distribution
from ovspec.sampling.tree_acceptance import ROOT, depth, follow_choices

COUNT, WIDTH, DEPTH = 7, 2, 3


@functools.cache
def settings_of(do_sample: bool, **options: Any) -> GenerationSettings:
    tree = {"num_assistant_tokens": COUNT, "branching_factor": WIDTH, "tree_depth": DEPTH}
    config = updated(GenerationConfig(), {"max_new_tokens": 9, "do_sample": do_sample, **tree, **options})
    return resolve(config, (), has_draft=True)


def grown(sequence: Sequence, q: Any, count: int = COUNT, levels: int = DEPTH) -> tuple[Proposal, int]:
    """The proposal of a draft model that is a table, and how many passes it took."""
    tree, passes, begin = DraftTree(sequence, count, levels), 1, tuple(sequence.tokens)

    def logits(path: Context) -> NDArray[np.float32]:
        with np.errstate(divide="ignore"):
            return np.log(dense(q((*begin, *path)))).astype(np.float32)

    def path_of(row: int) -> Context:
        tokens, parents = tree.rows
        return () if row == ROOT else (*path_of(int(parents[row])), int(tokens[row]))

    rows = [logits(())]
    while tree.grow(np.stack(rows)):
        tokens, passes = tree.rows[0], passes + 1
        rows = [logits(path_of(row)) for row in range(len(tokens) - len(tree.frontier), len(tokens))]
    return tree.proposal(), passes


def reference(q: Any, begin: Context, count: int, width: int, levels: int) -> dict[Context, float]:
    """EAGLE-2's tree by its definition: every path that is drawn up, and the `count` likeliest of them."""
    found: dict[Context, float] = {}
    frontier: dict[Context, float] = {(): 1.0}
    for _ in range(levels):
        level: dict[Context, float] = {}
        for path, probability in frontier.items():
            p = dense(q((*begin, *path)))
            for token in np.argsort(-p)[:width].tolist():
                level[(*path, token)] = probability * p[token]
        found |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:width])
    return dict(sorted(found.items(), key=lambda item: -item[1])[:count])


def paths(proposal: Proposal) -> list[Context]:
    assert proposal.parents is not None
    found: list[Context] = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        found.append((*(found[parent] if parent != ROOT else ()), token))
    return found


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(
    ("count", "width", "levels"), [(1, 2, 1), (3, 2, 3), (7, 2, 3), (9, 3, 2), (5, 5, 3)]
)
def test_a_greedy_tree_is_the_references(name: str, count: int, width: int, levels: int) -> None:
    settings = settings_of(
        False, branching_factor=width, tree_depth=levels, num_assistant_tokens=max(count, levels)
    )
    proposal, passes = grown(Sequence.start([], 9, settings, 0), DRAFTERS[name], count, levels)
    expected = reference(DRAFTERS[name], (), count, width, levels)
    expected = {path: p for path, p in expected.items() if p > 0}
    assert proposal.confidences is not None
    assert dict(zip(paths(proposal), proposal.confidences, strict=True)) == pytest.approx(expected, rel=1e-5)
    assert passes <= levels
    proposal.checked("tree", count, VOCAB)


def best_first(places: NDArray[np.float64], count: int) -> dict[Context, float]:
    """DDTree's tree (arXiv 2604.12989): the prefixes of highest product of their places' probabilities."""
    found: dict[Context, float] = {}
    waiting: list[tuple[float, Context]] = [(-1.0, ())]
    while waiting and len(found) <= count:
        product, path = heapq.heappop(waiting)
        found[path] = -product
        if len(path) < len(places):
            for token, p in enumerate(places[len(path)]):
                heapq.heappush(waiting, (product * p, (*path, token)))
    return {path: p for path, p in found.items() if path}


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_a_tree_as_wide_as_its_nodes_is_the_best_of_all(count: int, sharpness: float) -> None:
    """Where places are known together: nothing that DDTree would take is cut off."""
    logits = sharpness * np.random.default_rng(count).normal(size=(5, VOCAB)).astype(np.float32)
    width, levels = max(2, count), min(5, count)
    options = {"branching_factor": width, "tree_depth": levels, "num_assistant_tokens": count}
    sequence = Sequence.start([], 9, settings_of(False, **options), 0)
    proposal = parallel_draft(sequence, count, logits)
    places = np.exp(logits.astype(np.float64))
    expected = best_first((places / places.sum(1, keepdims=True))[:levels], count)
    assert proposal.confidences is not None
    assert dict(zip(paths(proposal), proposal.confidences, strict=True)) == pytest.approx(expected, rel=1e-4)


def test_a_tree_of_unlikely_nodes_needs_no_further_passes() -> None:
    """Where no node of a level is among the best, its children are not computed."""
    first = Distribution.from_probs(np.array([0.4, 0.3, 0.2, 0.05, 0.05]))
    even = Distribution.from_probs(np.full(VOCAB, 0.2))
    settings = settings_of(False, branching_factor=3, num_assistant_tokens=3)
    proposal, passes = grown(Sequence.start([], 9, settings, 0), lambda c: even if c else first, 3)
    assert (paths(proposal), passes) == ([(0,), (1,), (2,)], 2)


def test_nodes_below_a_confidence_are_dropped_with_their_children() -> None:
    proposal = Proposal([4, 5, 6, 7], parents=[-1, -1, 1, 2], confidences=[0.2, 0.7, 0.5, 0.5])
    proposal.drop_unlikely(0.5)
    assert (proposal.tokens, proposal.parents) == ([5, 6, 7], [-1, 0, 1])
    proposal.drop_unlikely(math.inf)
    assert (proposal.tokens, proposal.parents, proposal.confidences) == ([], [], [])


def decode(drafter: str, run: int, keeps_choices: bool = True) -> tuple[Context, int]:
    """First tokens of a run, and how many tokens of its trees were accepted."""
    sequence, accepted = Sequence.start([], 9, settings_of(True, rng_seed=5), run), 0
    while len(sequence.tokens) < LENGTH:
        context = tuple(sequence.tokens)
        proposal, _ = grown(sequence, DRAFTERS[drafter], levels=LENGTH)
        tokens = proposal.tokens

        def choice(path: list[int], c: Context = context, x: list[int] = tokens) -> int:
            p = TARGET((*c, *(x[node] for node in path)))
            own = sequence.coupling.draw(p, len(c) + len(path))
            return own if keeps_choices or len(path) == len(x) else x[len(path)]

        path = follow_choices(tokens, proposal.parents or [], choice)
        accepted += len(path.nodes)
        sequence.append([*(tokens[node] for node in path.nodes), path.next_token])
    return tuple(sequence.tokens[:LENGTH]), accepted


@pytest.mark.parametrize("drafter", by_tier(DRAFTERS, ["opposed"]))
def test_three_positions_follow_the_target_exactly(drafter: str) -> None:
    assert_exact(functools.partial(decode, drafter))


def test_a_rule_that_takes_the_likeliest_node_fails_the_same_test() -> None:
    assert_caught(functools.partial(decode, "random", keeps_choices=False))


def test_the_targets_own_tree_holds_every_draw() -> None:
    """A draft model that is the target ranks first what the target draws: all levels are accepted."""
    for run in range(50):
        sequence = Sequence.start([], 9, settings_of(True, rng_seed=5), run)
        proposal, _ = grown(sequence, TARGET)
        tokens, parents = proposal.tokens, proposal.parents or []

        def own(path: list[int], x: list[int] = tokens, s: Sequence = sequence) -> int:
            return s.coupling.draw(TARGET(tuple(x[node] for node in path)), len(path))

        assert len(follow_choices(tokens, parents, own).nodes) == depth(parents)
