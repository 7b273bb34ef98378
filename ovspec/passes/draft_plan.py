"""Inputs of a pass that drafts several tokens of each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.tables import Rows, joined, slots
from ovspec_ops.decoder_layers.sampling import SAMPLING
from ovspec_transforms import DRAFT_PLAN, DRAFT_SAMPLING, SLOT_MAPPING

_POSITIONS = "position_ids"
_LARGEST = np.zeros(0, np.uint8)


class DraftPlan:
    """The inputs of a graph that can draft, as `ovspec_transforms.join_layers` makes it.

    Behind the rows of a pass come those of its drafts: one for each sequence that drafts a second token, then
    one for each that drafts a third, and so on. The operation computes one such run behind the other, as the
    tokens of a run are those that the run before has chosen.
    """

    names = (DRAFT_PLAN, DRAFT_SAMPLING)

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @classmethod
    def of(cls, compiled: ov.CompiledModel, block_size: int) -> DraftPlan | None:
        """The inputs of a compiled model; `None` where it can't draft."""
        can = any(DRAFT_PLAN in port.get_names() for port in compiled.inputs)
        return cls(block_size) if can else None

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """Plan and sampling of a pass; of one that drafts positions and slots of all runs too.

        Raises:
            ValueError: some sequences draft and others do not, those that draft more do not come first, or
                the rows of one are a tree or have logits of more than the last.
        """
        counts, rows = [one.drafts for one in batch], sum(len(one.tokens) for one in batch)
        if not any(counts):
            return {DRAFT_PLAN: np.array([0, rows], np.int32), DRAFT_SAMPLING: _LARGEST}
        if counts[-1] < 1 or counts != sorted(counts, reverse=True):
            raise ValueError(f"sequences draft {counts} tokens: expected 1 or more each, the most first")
        for one in batch:
            if one.sampled != 1 or one.parents is not None:
                raise ValueError("drafts follow the last row of a chain: expected sampled=1 and no parents")
        runs = [1] * (counts[0] - 1)
        if len(batch) == 1:  # the common case: all rows of a sequence follow each other
            parts = [(batch[0], batch[0].past, batch[0].end)]
        else:
            runs = [sum(count > run for count in counts) for run in range(1, counts[0])]
            parts = [(one, one.past, one.context) for one in batch]
            behind = [(one, one.context + run) for run, most in enumerate(runs) for one in batch[:most]]
            parts += [(one, at, at + 1) for one, at in behind]
        size = self._block_size
        written = [slots(one.sequence.table, begin, end, size) for one, begin, end in parts]
        positions = [np.arange(begin, end) for _, begin, end in parts]
        return {
            DRAFT_PLAN: np.array([batch[0].vocab_size, rows, *runs], np.int32),
            DRAFT_SAMPLING: _sampling(batch),
            _POSITIONS: joined(positions),
            SLOT_MAPPING: joined(written),
        }


def _sampling(batch: Sequence[Rows]) -> NDArray[np.uint8]:
    """How each sequence draws; nothing where none does."""
    if all(one.sampling is None for one in batch):
        return _LARGEST
    found = np.zeros(len(batch), SAMPLING)  # a temperature of 0 takes the largest logit
    found["top_p"] = 1
    for index, one in enumerate(batch):
        if (law := one.sampling) is not None:
            top_k = min(law.top_k, one.vocab_size)  # that of OpenVINO GenAI has 64 bits
            position = one.context + one.unseen
            found[index] = (one.key, position, top_k, law.temperature, law.top_p, law.min_p, 0)
    return found.view(np.uint8)
