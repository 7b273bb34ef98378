"""What every feed-forward channel contributes on a user's texts, and the densities that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.channel_groups import balanced_groups, num_probes
from ovspec.model_runner import ModelRunner
from ovspec.verify_config import FfnRule
from ovspec_models import ChannelSets
from ovspec_transforms import GATE_ACTIVATIONS, FfnLayer, watch_channels

_KEPT_PASSES = 512


class ChannelStatistics:
    """Activated gates of verification passes, layer by layer.

    A channel's score in a pass is what the operation chooses by: the largest magnitude over the rows.

    Args:
        model: gets the outputs that are observed.
        keep: remember the scores of the first 512 passes, which `sets` goes by.

    Attributes:
        layers: its gated MLPs.

    Raises:
        ValueError: they can't be observed.
    """

    def __init__(self, model: ov.Model, keep: bool = False) -> None:
        self.layers: Sequence[FfnLayer] = watch_channels(model)
        self._kept: list[list[NDArray[np.float16]]] | None = [[] for _ in self.layers] if keep else None
        self._covered = [np.zeros(layer.channels) for layer in self.layers]
        self._passes = 0

    def observe(self, runner: ModelRunner) -> None:
        """Take the activations of the runner's last pass."""
        self._passes += 1
        for layer in self.layers:
            gates = np.asarray(runner.output(f"{GATE_ACTIVATIONS}{layer.index}"), np.float64)
            scores = np.abs(gates).reshape(-1, layer.channels).max(axis=0)
            energy = np.sort(scores**2)[::-1]
            if self._kept is not None and self._passes <= _KEPT_PASSES:
                self._kept[layer.index].append(scores.astype(np.float16))
            self._covered[layer.index] += np.cumsum(energy) / max(energy.sum(), 1e-30)

    def densities(self, covered: float) -> tuple[float, ...]:
        """Per layer the share of channels that hold this share of the squared scores, in the mean of passes.

        Args:
            covered: 0 to 1.
        """
        return tuple(_share(total / self._passes, covered) for total in self._covered)

    def check(self, groups: int | None) -> None:
        """Refuse a model whose channels can't be shared out among so many groups, or that has none.

        Raises:
            ValueError: it is such a model.
        """
        if not self.layers:
            raise ValueError("this model has no gated MLPs of dense layers; leave the ffn_rule out")
        for layer in self.layers:
            size = layer.channels // layer.blocks
            if groups is not None and size % groups:
                shared = ", whose weights share a scale" if layer.blocks > 1 else ""
                raise ValueError(
                    f"{groups} groups of channels: layer {layer.name} has {layer.blocks} x {size} of "
                    f"them{shared}; give a divisor of {size}"
                )

    def sets(self, groups: int | None) -> ChannelSets:
        """Every layer's channels by their mean share of the squared scores, and in so many groups.

        Args:
            groups: a number that `check` has passed, or `None` for no groups.
        """
        energies = [self._energy(layer) for layer in self.layers]
        orders = tuple(np.argsort(-energy.mean(0), kind="stable").astype(np.int32) for energy in energies)
        if groups is None:
            return ChannelSets(orders)
        found = [
            balanced_groups(np.sqrt(energy), groups, layer.blocks)
            for energy, layer in zip(energies, self.layers, strict=True)
        ]
        probes = [_probes(energy, layer) for energy, layer in zip(energies, found, strict=True)]
        return ChannelSets(orders, tuple(found), tuple(probes))

    def set_densities(self, sets: ChannelSets, rule: FfnRule, covered: float) -> tuple[float, ...]:
        """As `densities`, of the rules "static" and "groups"."""
        found = []
        for layer in self.layers:
            energy = self._energy(layer)
            if rule == "static":
                curve = np.cumsum(energy.mean(0)[sets.orders[layer.index]])
            else:
                groups = energy[:, sets.groups[layer.index]].sum(2)
                curve = np.cumsum(-np.sort(-groups, 1), 1).mean(0)
            found.append(_share(curve, covered))
        return tuple(found)

    def _energy(self, layer: FfnLayer) -> NDArray[np.float32]:
        """Share of every channel in the squared scores of a kept pass, f32 `[passes, channels]`."""
        assert self._kept is not None
        squared = np.stack(self._kept[layer.index]).astype(np.float32) ** 2
        total: NDArray[np.float32] = squared.sum(1, keepdims=True)
        shares: NDArray[np.float32] = squared / np.maximum(total, np.float32(1e-30))
        return shares


def _share(curve: NDArray[Any], covered: float) -> float:
    """What share of a curve's places reaches a height."""
    count = min(int(np.searchsorted(curve, covered - 1e-9)) + 1, len(curve))
    return round(count / len(curve), 4)


def _probes(energy: NDArray[np.float32], groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Of every group the channels with the largest share of the squared scores, i32 `[groups, probes]`."""
    mean = energy.mean(0)[groups]
    first = np.argsort(-mean, 1, kind="stable")[:, : num_probes(groups)]
    return np.take_along_axis(groups, first, 1)
