"""Inputs of a pass that say what pictures give it, and positions of several axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.tables import Rows
from ovspec_transforms import DEEP_ROWS, POSITION_AXES, ROWS_TAKEN, TOKEN_TYPES, VISUAL_ROWS

_IS_DEEP = "visual_pos_masks"


class VisualInputs:
    """The inputs of a graph that reads rows of pictures, as `ovspec_transforms.visual_rows` makes it.

    Args:
        hidden_size: numbers of a row.
        axes: of positions; 0: they have none of their own.
        has_types: whether stock attention asks which rows are those of pictures.
        deep: layers behind which something is added to rows of pictures.
    """

    def __init__(self, hidden_size: int, axes: int, has_types: bool = False, deep: int = 0) -> None:
        self._none = np.zeros((0, 1, hidden_size), np.float32)
        self._axes = axes
        self._has_types = has_types
        # The graph takes the row of a picture by its number: it can't read an input without any row.
        self._nothing = np.zeros((deep, 1, hidden_size), np.float32)
        optional = ((POSITION_AXES, axes), (TOKEN_TYPES, has_types), (_IS_DEEP, deep), (DEEP_ROWS, deep))
        self.names = (VISUAL_ROWS, ROWS_TAKEN, *(name for name, wanted in optional if wanted))

    @classmethod
    def of(cls, compiled: ov.CompiledModel) -> VisualInputs | None:
        """The inputs of a compiled model; `None` where it reads no pictures."""
        shapes = {name: port.get_partial_shape() for port in compiled.inputs for name in port.get_names()}
        if VISUAL_ROWS not in shapes:
            return None
        axes = shapes[POSITION_AXES][0].get_length() if POSITION_AXES in shapes else 0
        deep = shapes[DEEP_ROWS][0].get_length() if DEEP_ROWS in shapes else 0
        return cls(shapes[VISUAL_ROWS][2].get_length(), axes, TOKEN_TYPES in shapes, deep)

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """Those of a pass."""
        count = sum(len(rows.tokens) for rows in batch)
        taken, begin, given, deep = np.arange(count), 0, [self._none], list[NDArray[np.float32]]()
        for rows in batch:
            visual = rows.sequence.visual
            own = slice(0, 0) if visual is None else visual.between(rows.past, rows.past + len(rows.tokens))
            if visual is not None and own.start < own.stop:
                behind = count + sum(map(len, given))
                taken[begin + visual.places[own] - rows.past] = behind + np.arange(own.stop - own.start)
                given.append(visual.rows[own, None])
                deep += [] if visual.deep is None else [visual.deep[:, own]]
            begin += len(rows.tokens)
        found: dict[str, NDArray[np.generic]] = {
            VISUAL_ROWS: np.concatenate(given) if len(given) > 1 else self._none,
            ROWS_TAKEN: taken,
        }
        if self._has_types:
            found[TOKEN_TYPES] = (taken >= count).astype(np.int64)[None]
        if len(self._nothing):
            found[_IS_DEEP] = (taken >= count)[:, None]
            found[DEEP_ROWS] = np.concatenate(deep, 1) if deep else self._nothing
        if self._axes:
            found[POSITION_AXES] = np.concatenate([self._positions(rows) for rows in batch], 1)
        return found

    def _positions(self, rows: Rows) -> NDArray[np.int64]:
        if rows.sequence.visual is None:
            return np.tile(rows.positions, (self._axes, 1))
        return rows.sequence.visual.positions_of(rows.positions, self._axes)
