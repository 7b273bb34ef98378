"""Rates of acceptance, by length of a lookup's match and by position of a model's draft."""

from __future__ import annotations

import numpy as np
import pytest

from ovspec.schedule.acceptance import AcceptanceModel


def test_a_match_grows_with_every_token_that_held() -> None:
    """What is learned behind a match of 3 says how likely the second token behind a match of 2 is."""
    model = AcceptanceModel()
    before = model.likely(2, 3)
    for _ in range(200):
        model.observe(3, 1, 0)
    after = model.likely(2, 3)
    assert after[0] == before[0] and after[1] < 0.7 * before[1]
    assert after[2] / after[1] == pytest.approx(before[2] / before[1])
    assert all(np.diff([AcceptanceModel().likely(match, 1)[0] for match in (1, 2, 3, 4, 8, 16, 32)]) > 0)


def test_rates_of_a_model_are_learned_by_position_and_go_on_beyond_it() -> None:
    model, rng = AcceptanceModel(), np.random.default_rng(0)
    for _ in range(2000):
        first = rng.random() < 0.9
        model.observe(0, 2, int(first) + int(first and rng.random() < 0.5))
    found = np.array(model.likely(0, 4))
    assert found[0] == pytest.approx(0.9, abs=0.1) and found[1] / found[0] == pytest.approx(0.5, abs=0.15)
    assert found[2] / found[1] == pytest.approx(found[1] / found[0], rel=0.2)


def test_a_model_that_failed_is_tried_again_at_some_time() -> None:
    model = AcceptanceModel()
    for _ in range(50):
        model.observe(0, 1, 0)
    low = model.likely(0, 1)[0]
    for _ in range(400):
        model.model.fade()
    assert low < 0.1 and model.likely(0, 1)[0] > 0.5


def test_confirmations_are_learned() -> None:
    model = AcceptanceModel()
    assert model.confirmed.rates(1)[0] > 0.95
    for _ in range(50):
        model.observe_commit(16, 4)
    assert model.confirmed.rates(1)[0] == pytest.approx(0.8, abs=0.05)
