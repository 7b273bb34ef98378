"""Inputs of a pass that say how many rows each layer computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.tables import Rows
from ovspec_transforms import GIVEN_STATES, LAYER_ROWS


class LayerRows:
    """Inputs of a graph whose layers can be left out, as `ovspec_transforms.skip_layers` makes it."""

    def __init__(self, layers: int, hidden_size: int) -> None:
        self.layers = layers
        self.names = {LAYER_ROWS, GIVEN_STATES}
        self._none = np.zeros((0, 1, hidden_size), np.float32)

    @classmethod
    def of(cls, compiled: ov.CompiledModel) -> LayerRows | None:
        """The inputs of a compiled model; `None` where all layers compute all rows."""
        shapes = {port.get_any_name(): port.get_partial_shape() for port in compiled.inputs}
        if LAYER_ROWS not in shapes:
            return None
        return cls(shapes[LAYER_ROWS][0].get_length(), shapes[GIVEN_STATES][2].get_length())

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`layer_rows` and `given_states` of a pass, whose rows all go through the same layers.

        Raises:
            ValueError: rows that go through other layers than those of the first sequence.
        """
        layers = batch[0].layers
        if any(rows.layers != layers for rows in batch):
            raise ValueError(f"rows of a pass go through layers {layers} and others: expected the same ones")
        computed = np.full(self.layers, sum(len(rows.tokens) for rows in batch), np.int64)
        if layers is not None:
            computed[np.setdiff1d(np.arange(self.layers), layers)] = 0
        given = [rows.features for rows in batch if rows.features is not None]
        return {LAYER_ROWS: computed, GIVEN_STATES: np.concatenate(given) if given else self._none}
