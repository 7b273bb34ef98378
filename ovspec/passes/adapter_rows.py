"""Input of a pass that says which adapters its rows use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.passes.tables import Rows
from ovspec_ops.linear.adapters import row_addresses
from ovspec_transforms import ADAPTERS


class AdapterRows:
    """The input of a graph whose linear layers adapters can add to."""

    names = (ADAPTERS,)

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`adapters` of a pass."""
        loaded = [rows.sequence.adapters for rows in batch]
        tables = [None if of is None else of.table for of in loaded]
        return {ADAPTERS: row_addresses(tables, [len(rows.tokens) for rows in batch])}
