"""Channels that matter in the same passes, as groups of one size, and which of them a pass needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec_transforms import GroupEstimate

DEFAULT_GROUPS = 8
_ITERATIONS = 20
_PENALTY = 0.2  # of the regression, by pass
_CHANNELS_A_PROBE, _MOST_PROBES = 16, 128


def channel_groups(energies: NDArray[np.float32], groups: int, blocks: int) -> NDArray[np.int32]:
    """Share channels out so that half of the groups, chosen pass by pass, hold the most energy.

    Starts with a clustering of channels whose energies rise and fall together, by spherical k-means with
    groups of one size (as MoEfication clusters weights, arXiv 2110.01786). Then takes turns: every pass
    keeps its best half of the groups, and a channel goes where it is kept when it counts.

    Args:
        energies: share of every channel in what a pass adds up to, `[passes, channels]`.
        groups: how many, a divisor of a block's channels.
        blocks: of neighbouring channels, each of which is spread evenly over the groups.

    Returns:
        Channels i32 `[groups, channels / groups]`, ascending.
    """
    labels = _clustered(energies, groups, blocks)
    held, best = -1.0, labels
    for _ in range(_ITERATIONS):
        sums = _sums(energies, labels, groups)
        kept = np.zeros_like(sums)
        np.put_along_axis(kept, np.argsort(-sums, 1)[:, : max(1, groups // 2)], 1, axis=1)
        now = float((sums * kept).sum())
        if now <= held:
            break
        held, best = now, labels
        labels = _assign(energies.T @ kept, blocks)
    return np.stack([np.flatnonzero(best == group) for group in range(groups)]).astype(np.int32)


def group_estimate(
    gates: NDArray[np.float32], energies: NDArray[np.float32], groups: NDArray[np.int32]
) -> GroupEstimate:
    """What some channels' gates say of all groups' energies, by ridge regression.

    Args:
        gates: mean magnitude of every activated gate over a pass's rows, `[passes, channels]`.
        energies: as for `channel_groups`.
        groups: channels i32 `[groups, channels of a group]`.
    """
    channels, count = groups.size, len(groups)
    each = max(1, min(channels // _CHANNELS_A_PROBE, _MOST_PROBES) // count)
    ranked = np.argsort(-energies.mean(0)[groups], 1, kind="stable")[:, :each]
    probes = np.take_along_axis(groups, ranked, 1).reshape(-1)
    seen, wanted = gates[:, probes].astype(np.float64), energies[:, groups].sum(2).astype(np.float64)
    mean, spread = seen.mean(0), seen.std(0) + 1e-6
    known = (seen - mean) / spread
    square = known.T @ known + _PENALTY * len(known) * np.eye(len(probes))
    weights = np.linalg.solve(square, known.T @ (wanted - wanted.mean(0))) / spread[:, None]
    bias = wanted.mean(0) - mean @ weights
    return GroupEstimate(probes, weights.astype(np.float32), bias.astype(np.float32))


def _clustered(energies: NDArray[np.float32], groups: int, blocks: int) -> NDArray[np.int64]:
    points = np.sqrt(energies).T
    points = _unit(points - points.mean(1, keepdims=True))
    centres = points[np.random.default_rng(0).permutation(len(points))[:groups]]
    labels = np.zeros(len(points), np.int64)
    for _ in range(_ITERATIONS):
        before, labels = labels, _assign(points @ centres.T, blocks)
        if np.array_equal(before, labels):
            break
        centres = _unit(_sums(points.T, labels, groups).T)
    return labels


def _sums(values: NDArray[np.float32], labels: NDArray[np.int64], groups: int) -> NDArray[np.float32]:
    """Sums of `[.., channels]` over the channels of every group, `[.., groups]`."""
    return np.stack([values[:, labels == group].sum(1) for group in range(groups)], 1)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = rows / np.maximum(lengths, np.float32(1e-20))
    return scaled


def _assign(gains: NDArray[np.float32], blocks: int) -> NDArray[np.int64]:
    """The group of every channel, i64 `[channels]`, by f32 `[channels, groups]`; blocks are spread evenly."""
    channels, groups = gains.shape
    block = np.arange(channels) // (channels // blocks)
    labels = np.full(channels, -1)
    room = np.full((blocks, groups), channels // (blocks * groups))
    while (left := np.flatnonzero(labels < 0)).size:
        open_to = np.where(room[block[left]] > 0, gains[left], -np.inf)
        best = open_to.argmax(1)
        ranked = np.sort(open_to, 1)
        # Those that would lose most elsewhere come first, as many as there is room.
        key = block[left] * groups + best
        order = np.lexsort((ranked[:, -2] - ranked[:, -1], key))
        first = np.searchsorted(key[order], key[order])
        taken = order[np.arange(len(left)) - first < room.reshape(-1)[key[order]]]
        labels[left[taken]] = best[taken]
        np.subtract.at(room.reshape(-1), key[taken], 1)
    return labels
