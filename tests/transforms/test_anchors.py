"""Which layers become anchors, for overlaps that are known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from ovspec_transforms import anchor_of, choose_anchors, default_anchor_layers, list_overlap


def random_overlap(layers: int, seed: int) -> NDArray[np.float64]:
    values = np.random.default_rng(seed).random((layers, layers))
    overlap = (values + values.T) / 2
    np.fill_diagonal(overlap, 1.0)
    return overlap


def with_anchors(overlap: NDArray[np.float64], anchors: tuple[int, ...]) -> list[float]:
    return [float(overlap[anchor_of(layer, anchors), layer]) for layer in range(len(overlap))]


def every_choice(layers: int, count: int) -> list[tuple[int, ...]]:
    return [(0, *rest) for rest in combinations(range(1, layers), count - 1)]


@pytest.mark.parametrize("seed", range(5))
def test_so_many_anchors_are_the_best_of_their_number(seed: int) -> None:
    overlap = random_overlap(7, seed)
    for count in range(1, 8):
        chosen = choose_anchors(overlap, anchors=count)
        best = max(sum(with_anchors(overlap, choice)) for choice in every_choice(7, count))
        assert len(chosen) == count and chosen[0] == 0 and list(chosen) == sorted(chosen)
        assert sum(with_anchors(overlap, chosen)) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("least", [0.0, 0.3, 0.5, 0.7, 0.95, 1.0])
def test_as_few_anchors_as_reach_an_overlap(seed: int, least: float) -> None:
    overlap = random_overlap(7, seed)
    chosen = choose_anchors(overlap, least=least)
    good = [
        choice
        for count in range(1, 8)
        for choice in every_choice(7, count)
        if min(with_anchors(overlap, choice)) >= least
    ]
    fewest = min(map(len, good))
    assert min(with_anchors(overlap, chosen)) >= least and len(chosen) == fewest
    best = max(sum(with_anchors(overlap, choice)) for choice in good if len(choice) == fewest)
    assert sum(with_anchors(overlap, chosen)) == pytest.approx(best)


def test_layers_that_select_alike_need_one_anchor() -> None:
    overlap = np.kron(np.eye(3), np.ones((4, 4)))
    assert choose_anchors(overlap, least=0.9) == (0, 4, 8)
    assert choose_anchors(overlap, anchors=3) == (0, 4, 8)


def test_overlap_is_jaccard_and_the_mean_over_heads() -> None:
    kept = np.zeros((3, 2, 10), np.bool_)
    kept[0, 0, :4] = kept[1, 0, 2:6] = True  # 2 of 6
    kept[0, 1, :5] = kept[1, 1, :5] = True  # all
    overlap = list_overlap(kept)
    np.testing.assert_allclose(overlap, overlap.T)
    np.testing.assert_allclose(np.diag(overlap), 1)
    assert overlap[0, 1] == pytest.approx((2 / 6 + 1) / 2)
    assert overlap[0, 2] == 0


def test_default_rule_comes_denser_at_the_start() -> None:
    assert default_anchor_layers(range(28)) == (0, 1, 2, 6, 10, 14, 18, 22, 26)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give the one or the other"),
        ({"anchors": 2, "least": 0.5}, "give the one or the other"),
        ({"anchors": 0}, "anchors=0: expected 1 to 4"),
        ({"anchors": 5}, "anchors=5: expected 1 to 4"),
        ({"least": 1.5}, "overlap=1.5: expected a share"),
    ],
)
def test_impossible_choices_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_anchors(random_overlap(4, 0), **arguments)  # type: ignore[arg-type]
