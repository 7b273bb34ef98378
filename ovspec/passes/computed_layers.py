"""Inputs of a pass that say which layers compute its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.tables import Rows
from ovspec_transforms import COMPUTED_LAYERS, GIVEN_STATES


class ComputedLayers:
    """Inputs of a graph whose layers can be left out, as `ovspec_transforms.skip_layers` makes it."""

    def __init__(self, layers: int, hidden_size: int) -> None:
        self.layers = layers
        self.names = {COMPUTED_LAYERS, GIVEN_STATES}
        self._none = np.zeros((0, 1, hidden_size), np.float32)

    @classmethod
    def of(cls, compiled: ov.CompiledModel) -> ComputedLayers | None:
        """The inputs of a compiled model; `None` where all layers compute all rows."""
        shapes = {port.get_any_name(): port.get_partial_shape() for port in compiled.inputs}
        if COMPUTED_LAYERS not in shapes:
            return None
        return cls(shapes[COMPUTED_LAYERS][0].get_length(), shapes[GIVEN_STATES][2].get_length())

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`computed_layers` and `given_states` of a pass, whose rows all go through the same layers.

        Raises:
            ValueError: rows that go through other layers than those of the first sequence.
        """
        layers = batch[0].layers
        if any(rows.layers != layers for rows in batch):
            raise ValueError(f"rows of a pass go through layers {layers} and others: expected the same ones")
        computed = np.full(self.layers, layers is None, np.int32)
        computed[list(layers or ())] = 1
        given = [rows.features for rows in batch if rows.features is not None]
        return {COMPUTED_LAYERS: computed, GIVEN_STATES: np.concatenate(given) if given else self._none}
