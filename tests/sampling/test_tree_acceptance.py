"""Acceptance over trees: the law of what comes out, by the same test as for chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sampling.table_models import CASES, LENGTH, TARGET, VOCAB, Context, exact_joint, p_value
from tiers import by_tier

from ovspec.sampling.acceptance import RandomStreams
from ovspec.sampling.sampling import Distribution
from ovspec.sampling.tree_acceptance import ROOT, AcceptedPath, depth, follow_choices, sample_path

# Three children of the root, and children of two of them, one of which has a child.
PARENTS = [ROOT, ROOT, 0, 0, ROOT, 1, 3]
Rule = Callable[..., AcceptedPath]


def context_of(context: Context, tokens: Sequence[int], node: int) -> Context:
    return context if node == ROOT else (*context_of(context, tokens, PARENTS[node]), tokens[node])


def decode(drafter: str, reports: Callable[[int], bool], rule: Rule, run: int) -> Context:
    streams, context = RandomStreams(77, run), ()
    while len(context) < LENGTH:
        tokens: list[int] = []
        q: list[Distribution | None] = []
        for node, parent in enumerate(PARENTS):
            q_node = CASES[drafter].drafter(context_of(context, tokens, parent))
            tokens.append(q_node.sample(streams.draft.random()))
            q.append(q_node if reports(node) else None)

        def p(path: list[int], c: Context = context, x: list[int] = tokens) -> Distribution:
            return TARGET((*c, *(x[node] for node in path)))

        accepted = rule(tokens, PARENTS, q, p, streams)
        context += (*(tokens[node] for node in accepted.nodes), accepted.next_token)
    return context[:LENGTH]


def p_value_of(drafter: str, reports: Callable[[int], bool], rule: Rule, runs: int) -> float:
    return p_value([decode(drafter, reports, rule, run) for run in range(runs)], exact_joint(TARGET))


@pytest.mark.parametrize("reports", [lambda node: True, lambda node: False, lambda node: node % 2 == 0])
@pytest.mark.parametrize("drafter", by_tier(["random_q", "opposed_q", "q_with_zeros"], ["opposed_q"]))
def test_three_positions_follow_the_target_exactly(drafter: str, reports: Callable[[int], bool]) -> None:
    assert p_value_of(drafter, reports, sample_path, 3000) > 1e-3


def test_a_rule_that_forgets_rejected_siblings_fails_the_same_test() -> None:
    def forgetful(
        tokens: list[int],
        parents: list[int],
        q: list[Distribution],
        p: Callable[[list[int]], Distribution],
        streams: RandomStreams,
    ) -> AcceptedPath:
        path: list[int] = []
        while True:
            last = path[-1] if path else ROOT
            here = p(path)
            for child in (node for node, parent in enumerate(parents) if parent == last):
                if streams.accept.random() * q[child].prob(tokens[child]) < here.prob(tokens[child]):
                    path = [*path, child]
                    break
            else:
                return AcceptedPath(path, here.sample(streams.residual.random()))

    assert p_value_of("random_q", lambda node: True, forgetful, 2000) < 1e-6


def test_more_siblings_accept_more() -> None:
    p, q = TARGET(()), CASES["random_q"].drafter(())
    accepted = []
    for siblings in (1, 2, 4):
        count = 0
        for run in range(1500):
            streams = RandomStreams(4, run)
            tokens = [q.sample(streams.draft.random()) for _ in range(siblings)]
            path = sample_path(tokens, [ROOT] * siblings, [q] * siblings, lambda path: p, streams)
            count += bool(path.nodes)
        accepted.append(count)
    assert accepted[0] + 50 < accepted[1] < accepted[2] - 50


def test_choices_are_followed_as_far_as_the_tree_has_them() -> None:
    tokens = [5, 6, 7, 8, 9, 7, 1]

    def walk(*choices: int) -> AcceptedPath:
        return follow_choices(tokens, PARENTS, lambda path: choices[len(path)])

    assert walk(4) == AcceptedPath([], 4)
    assert walk(9, 2) == AcceptedPath([4], 2)
    assert walk(6, 7, 3) == AcceptedPath([1, 5], 3)
    assert walk(5, 8, 1, 0) == AcceptedPath([0, 3, 6], 0)
    assert walk(5, 1) == AcceptedPath([0], 1)


def test_depth() -> None:
    assert [depth([]), depth([ROOT]), depth([ROOT, ROOT, 1]), depth(PARENTS)] == [0, 1, 2, 3]


def test_equal_distributions_always_accept_the_first_child() -> None:
    p = Distribution(np.full(VOCAB, 1 / VOCAB))
    for run in range(100):
        path = sample_path([run % VOCAB, 1], [ROOT, ROOT], [p, p], lambda path: p, RandomStreams(run))
        assert path.nodes == [0]
