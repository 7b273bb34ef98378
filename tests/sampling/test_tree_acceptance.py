"""Acceptance over trees: the law of what comes out, by the same test as for chains."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from sampling.table_models import DRAFTERS, LENGTH, TARGET, Context, assert_caught, assert_exact
from tiers import by_tier

from ovspec.sampling.coupling import Coupling
from ovspec.sampling.tree_acceptance import ROOT, AcceptedPath, depth, follow_choices

# Three children of the root, and children of two of them, one of which has a child.
PARENTS = [ROOT, ROOT, 0, 0, ROOT, 1, 3]


def context_of(context: Context, tokens: Sequence[int], node: int) -> Context:
    return context if node == ROOT else (*context_of(context, tokens, PARENTS[node]), tokens[node])


def decode(drafter: str, run: int, keeps_siblings: bool = True) -> tuple[Context, int]:
    """First tokens of a run, and how many tokens of its trees were accepted."""
    coupling, context, accepted = Coupling(77, run), Context(), 0
    while len(context) < LENGTH:
        tokens: list[int] = []
        for node, parent in enumerate(PARENTS):
            before = context_of(context, tokens, parent)
            # Siblings are drawn with numbers of their own; the first one with those of its position.
            numbers = Coupling(node, run) if parent in PARENTS[:node] else coupling
            tokens.append(numbers.draw(DRAFTERS[drafter](before), len(before)))

        def choice(path: list[int], c: Context = context, x: list[int] = tokens) -> int:
            own = coupling.draw(TARGET((*c, *(x[node] for node in path))), len(c) + len(path))
            return own if keeps_siblings else x[path[-1] if path else 0]

        path = follow_choices(tokens, PARENTS, choice)
        accepted += len(path.nodes)
        context += (*(tokens[node] for node in path.nodes), path.next_token)
    return context[:LENGTH], accepted


@pytest.mark.parametrize("drafter", by_tier(DRAFTERS, ["opposed"]))
def test_three_positions_follow_the_target_exactly(drafter: str) -> None:
    assert_exact(functools.partial(decode, drafter))


def test_a_rule_that_takes_the_first_child_fails_the_same_test() -> None:
    assert_caught(functools.partial(decode, "random", keeps_siblings=False))


def test_more_siblings_accept_more() -> None:
    p, q = TARGET(()), DRAFTERS["random"](())
    accepted = []
    for siblings in (1, 2, 4):
        count = 0
        for run in range(1500):
            tokens = [Coupling(sibling, run).draw(q, 0) for sibling in range(siblings)]
            own = Coupling(99, run).draw(p, 0)
            count += bool(follow_choices(tokens, [ROOT] * siblings, lambda path, own=own: own).nodes)  # type: ignore[misc]
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
