"""Groups of channels from passes in which they matter together, and estimates of what a pass needs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ovspec.calibrate.channel_groups import channel_groups, group_estimate

PASSES, CHANNELS, TOPICS = 200, 96, 4


def topical(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Energies of channels that each belong to a topic; every pass has two. Also both assignments."""
    rng = np.random.default_rng(seed)
    topic = rng.permutation(np.arange(CHANNELS) % TOPICS)
    # As many of each topic in every block of 24, which groups have to keep to.
    topic = np.concatenate([rng.permutation(np.repeat(np.arange(TOPICS), 6)) for _ in range(4)])
    chosen = np.array([rng.permutation(TOPICS)[:2] for _ in range(PASSES)])
    active = (topic[None, :, None] == chosen[:, None]).any(2)
    energies = rng.random((PASSES, CHANNELS)) * np.where(active, 1.0, 0.05)
    return (energies / energies.sum(1, keepdims=True)).astype(np.float32), topic, chosen


@pytest.mark.parametrize("blocks", [1, 4])
def test_channels_of_a_topic_become_a_group(blocks: int) -> None:
    energies, topic, _ = topical()
    groups = channel_groups(energies, TOPICS, blocks)
    assert groups.shape == (TOPICS, CHANNELS // TOPICS) and groups.dtype == np.int32
    assert sorted(len(set(topic[group].tolist())) for group in groups) == [1] * TOPICS


@pytest.mark.parametrize(("groups", "blocks"), [(2, 1), (3, 2), (8, 4), (4, 24)])
def test_groups_share_every_block_evenly(groups: int, blocks: int) -> None:
    energies = np.random.default_rng(1).random((20, CHANNELS)).astype(np.float32)
    found = channel_groups(energies, groups, blocks)
    assert np.array_equal(np.sort(found.reshape(-1)), np.arange(CHANNELS))
    size = CHANNELS // blocks
    for group in found:
        assert np.array_equal(group, np.sort(group))
        assert np.bincount(group // size, minlength=blocks).tolist() == [size // groups] * blocks
    assert np.array_equal(found, channel_groups(energies, groups, blocks))


def test_constant_energies_are_no_error() -> None:
    found = channel_groups(np.full((3, 12), 1 / 12, np.float32), 3, 1)
    assert np.array_equal(np.sort(found.reshape(-1)), np.arange(12))


def test_estimate_finds_the_groups_of_new_passes() -> None:
    energies, _, _ = topical()
    groups = channel_groups(energies, TOPICS, 1)
    found = group_estimate(np.sqrt(energies), energies, groups)
    assert found.probes.dtype == np.int32 and found.weights.shape == (len(found.probes), TOPICS)
    assert len(found.probes) <= CHANNELS // 16 and found.bias.shape == (TOPICS,)
    fresh, topic, chosen = topical(seed=0)
    scores = np.sqrt(fresh)[:, found.probes] @ found.weights + found.bias
    two = np.argsort(-scores, 1)[:, :2]
    named = np.array([topic[group[0]] for group in groups])
    right = [set(named[row].tolist()) == set(pair.tolist()) for row, pair in zip(two, chosen, strict=True)]
    assert np.mean(right) > 0.9
