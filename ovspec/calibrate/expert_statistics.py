"""Statistics of routing weights on a user's texts, and budgets from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.calibrate.channel_statistics import points_to
from ovspec.passes.pass_result import PassResult
from ovspec_transforms import ROUTING_INDICES, ROUTING_WEIGHTS, MoELayer, watch_routing


class ExpertStatistics:
    """Routing weights of verification passes, layer by layer.

    The model is extended by the observed outputs; `layers` are its layers with experts.
    """

    def __init__(self, model: ov.Model) -> None:
        self.layers: Sequence[MoELayer] = watch_routing(model)
        self._mass = [np.zeros(layer.experts) for layer in self.layers]
        self._covered = [np.zeros(layer.experts) for layer in self.layers]
        self._passes = 0

    def observe(self, result: PassResult) -> None:
        """Add the routing of a pass."""
        self._passes += 1
        for layer in self.layers:
            indices = np.asarray(result.output(f"{ROUTING_INDICES}{layer.index}")).reshape(-1, layer.top_k)
            weights = np.asarray(result.output(f"{ROUTING_WEIGHTS}{layer.index}"), np.float64)
            self._add(layer, indices.astype(np.int64), weights.reshape(indices.shape))

    def _add(self, layer: MoELayer, indices: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        shares = weights / weights.sum(axis=1, keepdims=True)
        mass = np.bincount(indices.reshape(-1), shares.reshape(-1), layer.experts) / len(shares)
        self._mass[layer.index] += mass
        self._covered[layer.index] += np.cumsum(np.sort(mass)[::-1])

    @property
    def mass(self) -> list[NDArray[np.float64]]:
        """Mean share of the rows' routing weight per expert, f64 `[experts]`, one array per layer."""
        return [mass / self._passes for mass in self._mass]

    def budgets(self, covered: float) -> tuple[int, ...]:
        """Per layer, the fewest experts per pass with a share (0 to 1) of its routing weight on average."""
        pairs = zip(self.layers, self._covered, strict=True)
        return tuple(max(points_to(total / self._passes, covered), layer.top_k) for layer, total in pairs)
