"""What the host does for block selection in the graph: coverage, and how long a list serves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.tables import Rows, is_verification


def selects(rows: Rows, coverage: float, block_size: int) -> bool:
    """Whether blocks are selected for these rows, rather than all of them read."""
    limited = rows.budget < -(-rows.context // block_size) or coverage < 1.0
    return is_verification(rows) and rows.budget >= 0 and limited


class NativeSelection:
    """The inputs of `BlockSelect` beside the tables, and what becomes of a sequence's lists.

    Args:
        coverage: share of the estimated attention mass to keep, up to 1.
        refresh_interval: verification steps that a list serves.
        block_size: tokens per cache block.
    """

    def __init__(self, coverage: float, refresh_interval: int, block_size: int) -> None:
        self.coverage = coverage
        self._refresh_interval = refresh_interval
        self._block_size = block_size

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {"verify_coverage", "verify_refresh"}

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`verify_coverage` and `verify_refresh` of a pass."""
        return {
            "verify_coverage": np.full(len(batch), self.coverage, np.float32),
            "verify_refresh": np.array([self.refreshes(rows) for rows in batch], np.int32),
        }

    def refreshes(self, rows: Rows) -> bool:
        """Whether the next selection for these rows is a new one."""
        age = rows.sequence.list_age
        return age is None or age >= self._refresh_interval

    def finish(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        """Count the pass that `request` has run; the sequences have not advanced yet.

        A pass that does not select leaves lists behind that know nothing of the blocks it wrote.
        """
        for rows in batch:
            sequence = rows.sequence
            if not selects(rows, self.coverage, self._block_size):
                sequence.list_age = None
            elif self.refreshes(rows):
                sequence.list_age = 1
            else:
                sequence.list_age = (sequence.list_age or 0) + 1
