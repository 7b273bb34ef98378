"""Draft tokens go to the requests that accept them."""

from __future__ import annotations

import itertools

import pytest

from ovspec.engine.requests.allotment import AcceptanceRate, allot


def accepted(counts: list[int] | tuple[int, ...], rates: list[float]) -> float:
    """Tokens that are accepted, on average."""
    return sum(
        sum(rate**position for position in range(1, count + 1))
        for count, rate in zip(counts, rates, strict=True)
    )


@pytest.mark.parametrize(
    "rates", [[0.9, 0.2], [0.5, 0.5, 0.5], [0.95, 0.7, 0.1], [1.0, 0.0], [0.3, 0.8, 0.8]]
)
def test_as_many_tokens_in_all_where_most_are_accepted(rates: list[float]) -> None:
    tokens, rooms = 3, [63] * len(rates)
    counts = allot(tokens, rates, rooms)
    assert sum(counts) == tokens * len(rates)
    choices = itertools.product(range(1, 3 * tokens + 1), repeat=len(rates))
    best = max(accepted(c, rates) for c in choices if sum(c) == tokens * len(rates))
    assert accepted(counts, rates) == pytest.approx(best)
    assert accepted(counts, rates) >= accepted([tokens] * len(rates), rates)


def test_one_request_gets_what_the_plan_says_and_none_more_than_it_has_room_for() -> None:
    assert allot(5, [0.1], [63]) == [5]
    assert allot(5, [0.9], [2]) == [2]
    assert allot(4, [0.9, 0.9, 0.1], [1, 63, 0]) == [1, 11, 0]
    assert allot(0, [0.9, 0.5], [63, 63]) == [0, 0]
    assert allot(4, [0.9, 0.5], [-1, 63])[0] == 0


def test_a_rate_follows_its_last_drafts() -> None:
    rate = AcceptanceRate()
    assert rate.rate == pytest.approx(0.6)
    for _ in range(20):
        rate.observe(4, 4)
    assert rate.rate > 0.99
    for _ in range(20):
        rate.observe(4, 1)
    assert rate.rate == pytest.approx(0.5, abs=0.02)
    rate.observe(0, 0)
    assert rate.rate == pytest.approx(0.5, abs=0.02)
