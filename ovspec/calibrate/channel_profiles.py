"""What feed-forward channels add to their layers on a user's texts, for sets that are fixed beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.calibrate.channel_groups import channel_groups, group_estimate
from ovspec.calibrate.channel_statistics import share_of
from ovspec.runtime.model_runner import ModelRunner
from ovspec.verify.verify_config import FfnRule
from ovspec_models import ChannelSets
from ovspec_transforms import CHANNEL_ENERGIES, CHANNEL_GATES, FfnLayer, watch_contributions

_KEPT_PASSES = 512  # 4 bytes a channel each


class ChannelProfiles:
    """Channels of the first 512 verification passes, layer by layer.

    Args:
        model: gets the outputs that are observed.
        rule: "static" or "groups".
        groups: of the rule "groups", how many a layer has.

    Attributes:
        layers: its gated MLPs.

    Raises:
        ValueError: it has none, they can't be observed, or their channels can't be shared out evenly.
    """

    def __init__(self, model: ov.Model, rule: FfnRule, groups: int) -> None:
        self.rule, self._groups = rule, groups
        self.layers: Sequence[FfnLayer] = watch_contributions(model)
        if not self.layers:
            raise ValueError(f"ffn_rule={rule!r}: this model has no gated MLPs of dense layers; leave it out")
        for layer in self.layers:
            size = layer.channels // layer.blocks
            if rule == "groups" and size % groups:
                shared = ", whose weights share a scale" if layer.blocks > 1 else ""
                raise ValueError(
                    f"{groups} groups of channels: layer {layer.name} has {layer.blocks} x {size} of "
                    f"them{shared}; give a divisor of {size}"
                )
        self._energies: list[list[NDArray[np.float16]]] = [[] for _ in self.layers]
        self._gates: list[list[NDArray[np.float16]]] = [[] for _ in self.layers]

    def observe(self, runner: ModelRunner) -> None:
        """Take the channels of the runner's last pass."""
        if len(self._energies[0]) == _KEPT_PASSES:
            return
        for layer in self.layers:
            energy = np.asarray(runner.output(f"{CHANNEL_ENERGIES}{layer.index}"), np.float64)
            # Shares times their number are near 1, where f16 is precise enough.
            share = energy * layer.channels / max(energy.sum(), 1e-30)
            self._energies[layer.index].append(np.minimum(share, 6e4).astype(np.float16))
            if self.rule == "groups":
                gates = np.asarray(runner.output(f"{CHANNEL_GATES}{layer.index}"))
                self._gates[layer.index].append(np.minimum(gates, 6e4).astype(np.float16))

    @cached_property
    def sets(self) -> ChannelSets:
        """Every layer's channels by their mean share of the energy, and in groups by the rule "groups"."""
        orders, groups, estimates = [], [], []
        for layer in self.layers:
            energies = self._shares(layer)
            orders.append(np.argsort(-energies.mean(0), kind="stable").astype(np.int32))
            if self.rule == "groups":
                groups.append(channel_groups(energies, self._groups, layer.blocks))
                gates = np.stack(self._gates[layer.index]).astype(np.float32)
                estimates.append(group_estimate(gates, energies, groups[-1]))
        return ChannelSets(tuple(orders), tuple(groups), tuple(estimates))

    def densities(self, covered: float) -> tuple[float, ...]:
        """Per layer the share of its channels, or groups, that hold this share of the energy in the mean.

        Args:
            covered: 0 to 1.
        """
        found = []
        for layer in self.layers:
            energies = self._shares(layer)
            if self.rule == "groups":
                sums = energies[:, self.sets.groups[layer.index]].sum(2)
                curve = np.cumsum(-np.sort(-sums, 1), 1).mean(0)
            else:
                curve = np.cumsum(energies.mean(0)[self.sets.orders[layer.index]])
            found.append(share_of(curve, covered))
        return tuple(found)

    def _shares(self, layer: FfnLayer) -> NDArray[np.float32]:
        """Share of every channel in a pass's energy, f32 `[passes, channels]`."""
        kept: NDArray[np.float32] = np.stack(self._energies[layer.index]).astype(np.float32)
        shares: NDArray[np.float32] = kept / np.float32(layer.channels)
        return shares
