"""Channels that are active together, as groups of one size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DEFAULT_GROUPS = 4
_ITERATIONS = 20
_CHANNELS_A_PROBE = 16


def num_probes(groups: NDArray[np.int32]) -> int:
    """How many channels of a group stand for it, of groups i32 `[groups, channels]`."""
    return max(1, int(groups.shape[1]) // _CHANNELS_A_PROBE)


def balanced_groups(profiles: NDArray[np.float32], groups: int, blocks: int) -> NDArray[np.int32]:
    """Cluster channels by how alike their scores rise and fall, with as many of every block in each group.

    Spherical k-means of the scores' deviations from their means, in which a group that is full sends the
    channels away that would lose least elsewhere (the balanced clustering of MoEfication, arXiv 2110.01786,
    on activations instead of weights).

    Args:
        profiles: scores `[passes, channels]`.
        groups: how many, a divisor of a block's channels.
        blocks: of neighbouring channels, each of which is spread evenly.

    Returns:
        Channels i32 `[groups, channels / groups]`, ascending.
    """
    channels = profiles.shape[1]
    points = np.ascontiguousarray(profiles.T, np.float32)
    points = _unit(points - points.mean(1, keepdims=True))
    centres = points[np.random.default_rng(0).permutation(channels)[:groups]]
    labels = np.zeros(channels, np.int64)
    for _ in range(_ITERATIONS):
        before, labels = labels, _assign(points @ centres.T, blocks)
        if np.array_equal(before, labels):
            break
        centres = _unit(np.stack([points[labels == group].sum(0) for group in range(groups)]))
    return np.stack([np.flatnonzero(labels == group) for group in range(groups)]).astype(np.int32)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = rows / np.maximum(lengths, np.float32(1e-20))
    return scaled


def _assign(likeness: NDArray[np.float32], blocks: int) -> NDArray[np.int64]:
    """The group of every channel, i64 `[channels]`, by f32 `[channels, groups]`; blocks are spread evenly."""
    channels, groups = likeness.shape
    block = np.arange(channels) // (channels // blocks)
    labels = np.full(channels, -1)
    room = np.full((blocks, groups), channels // (blocks * groups))
    while (left := np.flatnonzero(labels < 0)).size:
        open_to = np.where(room[block[left]] > 0, likeness[left], -np.inf)
        best = open_to.argmax(1)
        ranked = np.sort(open_to, 1)
        loss = ranked[:, -1] - ranked[:, -2] if groups > 1 else np.zeros(len(left))
        # Those that would lose most come first in their block and group, and as many as there is room.
        key = block[left] * groups + best
        order = np.lexsort((-loss, key))
        first = np.searchsorted(key[order], key[order])
        taken = order[np.arange(len(left)) - first < room.reshape(-1)[key[order]]]
        labels[left[taken]] = best[taken]
        np.subtract.at(room.reshape(-1), key[taken], 1)
    return labels
