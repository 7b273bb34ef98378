"""Rates of acceptance by position, and how fast a change is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from ovspec.schedule.acceptance import AcceptanceModel, ConfirmationRates


def drafts(model: AcceptanceModel, rates: list[float], number: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(number):
        failures = np.flatnonzero(rng.random(len(rates)) >= np.array(rates))
        model.observe(len(rates), len(rates), int(failures[0]) if len(failures) else len(rates))


def test_rates_by_position_are_learned() -> None:
    model, rates = AcceptanceModel(63), [0.9, 0.6, 0.8, 0.7]
    drafts(model, rates, 3000)
    np.testing.assert_allclose(model.accepted.means(4), rates, atol=0.1)
    assert model.accepted_length(4) == pytest.approx(np.cumprod(rates).sum(), rel=0.1)


def test_positions_never_tried_go_on_from_the_last_one_and_fade() -> None:
    model = AcceptanceModel(63)
    drafts(model, [0.9, 0.9], 500)
    rates = model.accepted.means(20)
    assert rates[2] == pytest.approx(0.98 * rates[1], rel=0.01)
    assert np.all(np.diff(rates[2:]) < 0)


def test_a_first_draft_says_little() -> None:
    model = AcceptanceModel(8)
    model.observe(4, 4, 4)
    assert 0.6 < model.accepted.means(1)[0] < 0.8
    assert AcceptanceModel(8).accepted.means(1)[0] == pytest.approx(0.6)


def test_what_a_lookup_offers_is_learned() -> None:
    model = AcceptanceModel(63)
    for turn in range(300):
        model.observe(8, 0 if turn % 2 else 3, 0 if turn % 2 else 3)
    offers = model.offered.means(4)
    # The last of them weighs an eighth: offers are soon forgotten.
    assert offers[0] == pytest.approx(0.5, abs=0.1)
    assert offers[1] > 0.85 and offers[2] > 0.85 and offers[3] < 0.3
    # Nothing offered is not nothing accepted.
    assert model.accepted.means(1)[0] > 0.9


def test_collapse_is_seen_within_a_few_drafts_and_nothing_else_is() -> None:
    model = AcceptanceModel(63)
    for turn in range(400):
        drafts(model, [0.8] * 4, 1, seed=turn)
        assert not model.shift()
    for turn in range(12):
        drafts(model, [0.02] * 4, 1, seed=turn)
        if model.shift():
            break
    else:
        pytest.fail("no shift was seen")
    assert model.accepted_length(4) < 0.7


def test_recovery_is_seen_at_once() -> None:
    model = AcceptanceModel(63)
    drafts(model, [0.03] * 4, 200)
    assert not model.shift()
    for _ in range(3):
        model.observe(4, 4, 4)
    assert model.shift()
    assert model.accepted_length(4) > 1.0


def test_another_prompt_weighs_more_than_those_before() -> None:
    model = AcceptanceModel(63)
    drafts(model, [0.1] * 4, 2000)
    model.begin()
    before = model.accepted.means(1)[0]
    drafts(model, [1.0] * 4, 24)
    assert before < 0.25 and model.accepted.means(1)[0] > 0.5


def test_confirmations() -> None:
    rates = ConfirmationRates()
    assert rates.rate(1.0) == pytest.approx(63 / 64)
    for _ in range(200):
        rates.observe(1.0, 16, 16)
    assert rates.rate(1.0) > 0.998
    for _ in range(500):
        rates.observe(1.0, 16, 3)
    assert rates.rate(1.0) == pytest.approx(0.75, abs=0.01)


def test_a_budget_never_tried_is_believed_to_be_confirmed_until_commits_say_otherwise() -> None:
    rates = ConfirmationRates()
    rates.observe(0.5, 16, 3)
    assert rates.rate(2.0) == pytest.approx(1.0 - 1.0 / 64)
    # The belief weighs 64 tokens: one commit moves it, and does not decide.
    rates.observe(2.0, 16, 3)
    assert 0.9 < rates.rate(2.0) < 0.99
