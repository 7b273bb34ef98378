"""Inputs of a pass that drafts several tokens of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.tables import Number, Rows, slots
from ovspec_transforms import DRAFT_PLAN, SLOT_MAPPING

_POSITIONS = "position_ids"


class DraftPlan:
    """The inputs of a graph that can draft, as `ovspec_transforms.join_layers` makes it.

    Behind the rows of a pass come those of its drafts: one for each sequence that drafts a second token, then
    one for each that drafts a third, and so on. The operation computes one such run behind the other, as the
    tokens of a run are those that the run before has chosen.
    """

    names = (DRAFT_PLAN,)

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @classmethod
    def of(cls, compiled: ov.CompiledModel, block_size: int) -> DraftPlan | None:
        """The inputs of a compiled model; `None` where it can't draft."""
        can = any(DRAFT_PLAN in port.get_names() for port in compiled.inputs)
        return cls(block_size) if can else None

    def inputs(
        self, batch: Sequence[Rows], given: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, NDArray[np.generic]]:
        """`draft_plan`, and positions and slots of all runs.

        Args:
            given: the inputs of the pass without drafts.

        Raises:
            ValueError: sequences that do not all draft, or in another order than of the number of tokens,
                the most first, or that draft from another row than their last.
        """
        counts = [rows.drafts for rows in batch]
        if not any(counts):
            return {DRAFT_PLAN: np.array([0, len(given[_POSITIONS])], np.int32)}
        if min(counts) < 1 or counts != sorted(counts, reverse=True):
            raise ValueError(f"sequences draft {counts} tokens: expected 1 or more each, the most first")
        if any(rows.sampled != 1 or rows.parents is not None for rows in batch):
            raise ValueError("drafts follow the last row of a chain: expected sampled=1 and no parents")
        first, drafting = len(given[_POSITIONS]), [rows for rows in batch if rows.drafts > 1]
        behind = [np.arange(rows.context, rows.end) for rows in drafting]
        written = [slots(r.sequence.table, r.context, r.end, self._block_size) for r in drafting]
        runs = [sum(count > run for count in counts) for run in range(1, counts[0])]
        return {
            DRAFT_PLAN: np.array([batch[0].vocab_size, first, *runs], np.int32),
            _POSITIONS: np.concatenate([given[_POSITIONS], *_by_run(behind)]),
            SLOT_MAPPING: np.concatenate([given[SLOT_MAPPING], *_by_run(written)]),
        }


def _by_run(arrays: list[NDArray[Number]]) -> list[NDArray[Number]]:
    """The first number of each sequence, then the second of each, and so on."""
    if len(arrays) < 2:
        return arrays
    runs = np.concatenate([np.arange(len(array)) for array in arrays])
    return [np.concatenate(arrays)[runs.argsort(kind="stable")]]
