"""Which layers select blocks; by the paper's rule the others reuse the list of the last one that did."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence


def default_anchor_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """The default rule: the first three layers, then every fourth.

    The attention of early layers differs most between layers.

    Args:
        layers: the layers that can select, ascending (those without a sliding window).
    """
    return tuple(layer for rank, layer in enumerate(layers) if rank < 3 or (rank - 2) % 4 == 0)


def check_anchor_layers(
    anchors: Sequence[int] | None, layers: Sequence[int], rule: str = "paper"
) -> tuple[int, ...]:
    """The layers that select: by the paper's rule the anchors, else all.

    Raises:
        ValueError: anchors that do not ascend through `layers`, or anchors of another rule.
    """
    if rule != "paper":
        if anchors is not None:
            raise ValueError(
                f"anchor_layers={list(anchors)}: with rule={rule!r} every layer selects; leave it out, or "
                "use rule='paper'"
            )
        return tuple(layers)
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
