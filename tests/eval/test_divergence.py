"""Measures of divergence against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ovspec.eval.divergence import decide, first_divergence, kl_divergence, log_softmax, margin


def logits(*probabilities: float) -> NDArray[np.float32]:
    """Logits of these probabilities, shifted, as a model's are."""
    with np.errstate(divide="ignore"):
        return (np.log(probabilities) + 7.5).astype(np.float32)


KL: dict[str, tuple[tuple[float, ...], tuple[float, ...], float]] = {
    "the same": ((0.5, 0.25, 0.25), (0.5, 0.25, 0.25), 0.0),
    # 1/2 ln 2 + 1/4 ln(1/2) + 1/4 ln 1
    "halves and quarters": ((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), 0.25 * math.log(2)),
    # The other direction is not the same: 3/4 ln(3/2) + 1/4 ln(1/2), and 1/2 ln(2/3) + 1/2 ln 2.
    "forth": ((0.75, 0.25), (0.5, 0.5), 0.75 * math.log(1.5) - 0.25 * math.log(2)),
    "back": ((0.5, 0.5), (0.75, 0.25), 0.5 * math.log(2 / 3) + 0.5 * math.log(2)),
    "p rules a token out": ((1.0, 0.0), (0.25, 0.75), math.log(4)),
    "both rule it out": ((0.5, 0.5, 0.0), (0.25, 0.75, 0.0), 0.5 * math.log(2) + 0.5 * math.log(2 / 3)),
    "q rules out what p allows": ((0.5, 0.5), (1.0, 0.0), math.inf),
}


@pytest.mark.parametrize("name", KL)
def test_kl_is_the_hand_computed_one(name: str) -> None:
    p, q, expected = KL[name]
    assert kl_divergence(log_softmax(logits(*p)), log_softmax(logits(*q))) == pytest.approx(
        expected, abs=2e-6
    )


def test_kl_of_equal_logits_is_exactly_zero() -> None:
    row = np.random.default_rng(0).standard_normal(1000, np.float32)
    assert kl_divergence(log_softmax(row), log_softmax(row)) == 0.0


def test_kl_resolves_what_f32_can_not() -> None:
    # For close logits KL is half the variance of their difference under p: here 4e-16.
    row = np.zeros(1024, np.float32)
    other = row.copy()
    other[0] = np.float32(2**-20)
    expected = 0.5 * 2**-40 / 1024 * (1 - 1 / 1024)
    assert kl_divergence(log_softmax(row), log_softmax(other)) == pytest.approx(expected, rel=0.01)


def test_log_softmax_is_normalised_and_f64() -> None:
    row = logits(0.7, 0.2, 0.1) * np.float32(100)
    found = log_softmax(row)
    assert found.dtype == np.float64
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-15)


MARGIN = [((0.5, 0.3, 0.2), math.log(0.5 / 0.3)), ((0.2, 0.4, 0.4), 0.0), ((0.1, 0.1, 0.8), math.log(8))]


@pytest.mark.parametrize(("probabilities", "expected"), MARGIN)
def test_margin_is_between_the_first_two_choices(probabilities: tuple[float, ...], expected: float) -> None:
    assert margin(logits(*probabilities)) == pytest.approx(expected, abs=2e-6)


def test_margin_of_a_single_choice_is_infinite() -> None:
    assert margin(logits(1.0, 0.0)) == math.inf
    assert margin(logits(1.0)) == math.inf


@pytest.mark.parametrize(
    ("dense", "other", "agrees"),
    [
        ((0.5, 0.3, 0.2), (0.4, 0.35, 0.25), True),
        ((0.5, 0.3, 0.2), (0.35, 0.4, 0.25), False),
        ((0.4, 0.4, 0.2), (0.45, 0.35, 0.2), True),  # among equals the lower id is the choice
        ((0.4, 0.4, 0.2), (0.35, 0.45, 0.2), False),
    ],
)
def test_decision(dense: tuple[float, ...], other: tuple[float, ...], agrees: bool) -> None:
    decision = decide(logits(*dense), logits(*other))
    assert decision.agrees is agrees
    # The margin is dense decoding's, whatever the other's is.
    assert decision.margin == pytest.approx(math.log(dense[0] / dense[1]), abs=2e-6)
    expected = sum(p * math.log(p / q) for p, q in zip(dense, other, strict=True))
    assert decision.kl == pytest.approx(expected, abs=2e-6)


def test_logits_without_a_choice_are_refused() -> None:
    broken = np.array([0.0, np.nan], np.float32)
    with pytest.raises(ValueError, match="maximum of nan"):
        decide(logits(0.5, 0.5), broken)


@pytest.mark.parametrize(
    ("reference", "tokens", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [4, 2, 3], 0),
        ([1, 2, 3], [1, 2, 4], 2),
        ([1, 2, 3, 4], [1, 5, 3, 6], 1),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([], [], None),
    ],
)
def test_first_divergence(reference: list[int], tokens: list[int], expected: int | None) -> None:
    assert first_divergence(reference, tokens) == expected
