"""Anchor layers: the layers that select blocks; other layers reuse the list of the last anchor."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def default_anchor_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """The default rule: the first three layers, then every fourth.

    The attention of early layers differs most between layers. A calibrated list replaces this one.

    Args:
        layers: the layers that can select, ascending (those without a sliding window).
    """
    return tuple(layer for rank, layer in enumerate(layers) if rank < 3 or (rank - 2) % 4 == 0)


def check_anchor_layers(anchors: Sequence[int] | None, layers: Sequence[int]) -> tuple[int, ...]:
    """The anchors, by the default rule without any; `ValueError` unless they ascend through `layers`."""
    if anchors is None:
        return default_anchor_layers(layers)
    ascending = all(a < b for a, b in itertools.pairwise(anchors))
    if not anchors or anchors[0] != layers[0] or not ascending or not set(anchors) <= set(layers):
        raise ValueError(
            f"anchor_layers={list(anchors)}: expected ascending numbers out of {list(layers)} that "
            f"start with {layers[0]}, e.g. {list(default_anchor_layers(layers))}"
        )
    return tuple(anchors)


def anchor_of(layer: int, anchors: Sequence[int]) -> int:
    """The anchor whose list a layer uses: the last one at or before it."""
    return anchors[bisect_right(anchors, layer) - 1]


def list_overlap(kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Jaccard similarity of the layers' block lists, mean over KV heads.

    Args:
        kept: bool `[layers, kv_heads, blocks]`, without the blocks that are always read, which would make all
            lists similar.

    Returns:
        f64 `[layers, layers]`, symmetric; 1 for two empty lists.
    """
    lists = kept.transpose(1, 0, 2).astype(np.float64)
    shared = lists @ lists.transpose(0, 2, 1)
    sizes = lists.sum(axis=2)
    either = sizes[:, :, None] + sizes[:, None, :] - shared
    return np.asarray(np.where(either > 0, shared / np.maximum(either, 1), 1.0).mean(axis=0))


def choose_anchors(
    overlap: NDArray[np.float64], anchors: int | None = None, least: float | None = None
) -> tuple[int, ...]:
    """Choose the anchors with the largest overlap with the layers that reuse their lists.

    With `anchors`: that number, with the largest mean overlap of the layers with their anchors. With `least`:
    the fewest anchors with which every layer has at least this overlap; among those, the largest mean.

    Args:
        overlap: f64 `[layers, layers]`, mean of `list_overlap` over passes.
        anchors: number of anchors, 1 to the number of layers.
        least: minimal overlap of every layer, 0 to 1.

    Returns:
        Rows of `overlap`, ascending from 0.

    Raises:
        ValueError: both or neither are given, or one is out of range.
    """
    layers = len(overlap)
    if (anchors is None) == (least is None):
        raise ValueError(f"anchors={anchors}, least={least}: give the one or the other")
    if anchors is not None and not 1 <= anchors <= layers:
        raise ValueError(f"anchors={anchors}: expected 1 to {layers}, the number of layers that can select")
    if least is not None and not 0.0 <= least <= 1.0:
        raise ValueError(f"overlap={least}: expected a share between 0 and 1")
    # gain[a, end]: sum of the overlaps of layers a .. end - 1 with anchor a.
    gain = np.full((layers, layers + 1), -np.inf)
    for a in range(layers):
        reach = overlap[a, a:].copy()
        if least is not None:
            reach[np.minimum.accumulate(reach) < least] = -np.inf
        gain[a, a + 1 :] = np.cumsum(reach)
    # best[end]: largest sum for the layers below `end`, with one anchor more than in the round before.
    best, choices = gain[0], list[NDArray[np.int64]]()
    while len(choices) + 1 < anchors if anchors is not None else best[layers] == -np.inf:
        totals = best[:layers, None] + gain
        choices.append(totals.argmax(axis=0))
        best = totals.max(axis=0)
    chosen, end = list[int](), layers
    for choice in reversed(choices):
        end = int(choice[end])
        chosen.append(end)
    return (0, *reversed(chosen))
