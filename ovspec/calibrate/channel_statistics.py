"""Statistics of feed-forward channels on a user's texts, and densities from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.pass_result import PassResult
from ovspec_transforms import GATE_ACTIVATIONS, FfnLayer, watch_channels


class ChannelStatistics:
    """Activated gates of verification passes, layer by layer.

    The score of a channel in a pass is that of GatedMLP: the largest magnitude over the rows. The model is
    extended by the observed outputs; `layers` are its gated MLPs.
    """

    def __init__(self, model: ov.Model) -> None:
        self.layers: Sequence[FfnLayer] = watch_channels(model)
        self._covered = [np.zeros(layer.channels) for layer in self.layers]
        self._passes = 0

    def observe(self, result: PassResult) -> None:
        """Add the activations of a pass."""
        self._passes += 1
        for layer in self.layers:
            gates = np.asarray(result.output(f"{GATE_ACTIVATIONS}{layer.index}"), np.float64)
            scores = np.abs(gates).reshape(-1, layer.channels).max(axis=0)
            energy = np.sort(scores**2)[::-1]
            self._covered[layer.index] += np.cumsum(energy) / max(energy.sum(), 1e-30)

    def densities(self, covered: float) -> tuple[float, ...]:
        """Per layer, the share of channels with a share (0 to 1) of the squared scores, mean over passes."""
        counts = [points_to(total / self._passes, covered) for total in self._covered]
        return tuple(round(count / len(total), 4) for count, total in zip(counts, self._covered, strict=True))


def points_to(curve: NDArray[np.floating], height: float) -> int:
    """Number of points until a rising curve reaches `height`, at most all."""
    return min(int(np.searchsorted(curve, height - 1e-9)) + 1, len(curve))
