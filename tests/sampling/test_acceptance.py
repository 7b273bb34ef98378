"""Acceptance rules: the output follows the target's exact law, and wrong rules fail the same test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sampling.table_models import DRAFTERS, LENGTH, TARGET, Context, exact_joint, p_value
from tiers import by_tier

from ovspec.sampling.acceptance import Accepted, accept_draft
from ovspec.sampling.coupling import Coupling

Rule = Callable[[Context, list[int]], Accepted]


def outputs_of(drafter: str, draws: bool, rule: Rule, runs: int) -> list[Context]:
    """First tokens of runs whose drafts are coupled, or else drawn with numbers of their own."""
    outputs = []
    for run in range(runs):
        coupling = Coupling(17, run)
        drafting = Coupling(18, run) if draws else coupling
        tokens: Context = ()
        while len(tokens) < LENGTH:
            draft: Context = ()
            for position in range(len(tokens), LENGTH):
                draft += (drafting.draw(DRAFTERS[drafter]((*tokens, *draft)), position),)
            own = [
                coupling.draw(TARGET((*tokens, *draft[:i])), len(tokens) + i) for i in range(len(draft) + 1)
            ]
            accepted = rule(draft, own)
            tokens += (*draft[: accepted.n], accepted.next_token)
        outputs.append(tokens[:LENGTH])
    return outputs


@pytest.mark.parametrize("draws", [False, True], ids=["coupled", "drawn"])
@pytest.mark.parametrize("drafter", by_tier(DRAFTERS, ["opposed"]))
def test_three_positions_follow_the_target_exactly(drafter: str, draws: bool) -> None:
    assert p_value(outputs_of(drafter, draws, accept_draft, 2500), exact_joint(TARGET)) > 1e-3


def accept_everything(draft: Context, own: list[int]) -> Accepted:
    return Accepted(len(draft), own[-1])


def correct_with_the_next(draft: Context, own: list[int]) -> Accepted:
    accepted = accept_draft(draft, own)
    return Accepted(accepted.n, own[min(accepted.n + 1, len(draft))])


@pytest.mark.parametrize(
    "rule",
    [accept_everything, correct_with_the_next, lambda x, own: accept_draft(x, own, lambda i: 1.0, 0.5)],
)
def test_wrong_rules_fail_the_same_test(rule: Rule) -> None:
    assert p_value(outputs_of("random", False, rule, 1000), exact_joint(TARGET)) < 1e-6


def test_a_draft_like_the_target_is_accepted_whole() -> None:
    def whole(draft: Context, own: list[int]) -> Accepted:
        accepted = accept_draft(draft, own)
        assert accepted.n == len(draft)
        return accepted

    outputs_of("the target", False, whole, 300)


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2, 3])
def test_accept_drafts_up_to_the_first_difference(wrong_at: int | None) -> None:
    draft, target = [4, 2, 2, 0], [4, 2, 2, 0, 1]
    if wrong_at is not None:
        draft[wrong_at] = 3
    n = 4 if wrong_at is None else wrong_at
    assert accept_draft(draft, target) == Accepted(n, target[n])
    assert accept_draft(np.array(draft), np.array(target)) == Accepted(n, target[n])
    assert accept_draft([], [3]) == Accepted(0, 3)


@pytest.mark.parametrize(
    ("threshold", "n", "asked"),
    [(0.5, 3, [1, 2]), (0.7, 2, [1, 2]), (0.95, 1, [1])],
    ids=["low", "middle", "high"],
)
def test_accept_draftance_compares_what_is_not_the_targets_choice(
    threshold: float, n: int, asked: list[int]
) -> None:
    seen: list[int] = []

    def ratio(i: int) -> float:
        seen.append(i)
        return (1.0, 0.9, 0.6)[i]

    accepted = accept_draft([5, 6, 7], iter([5, 1, 2, 3]), ratio, threshold)
    assert accepted == Accepted(n, [5, 1, 2, 3][n]) and seen == asked


def test_target_rows_are_computed_only_as_far_as_needed() -> None:
    rows = iter([7, 7, 8, 7, 7])
    assert accept_draft([7, 7, 7, 7], rows) == Accepted(2, 8)
    assert list(rows) == [7, 7]


@pytest.mark.parametrize("lenience", [(), (lambda i: 1.0, 0.5)], ids=["exact", "lenient"])
def test_too_few_target_tokens_are_refused(lenience: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"^target_choice must have 3 entries for 2 draft tokens"):
        accept_draft([1, 1], iter([1, 1]), *lenience)
