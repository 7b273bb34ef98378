"""Repeats a pass of one row for the next token; only the inputs that differ are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.tables import FEATURES, Rows
from ovspec_transforms import ROPE_LENGTHS, VERIFY_TABLES

# Greater by one with every row of a block.
_COUNTED = ("position_ids", "past_lens", "max_context_len")
_PAST = 4  # where `verify_tables` of one row hold the tokens before it, see `pack_tables`
_OTHERS = (FEATURES, ROPE_LENGTHS)  # what a row depends on beside its token and its place


@dataclass(slots=True)
class NextRow:
    """Runs a graph of one row again for the next token of the same sequence.

    Within a block a row differs from the one before in five numbers.

    Args:
        inputs: of the last pass, whose graph has the shapes of one row.
        sequence: whose row that was.
        length: of the sequence behind that pass.
        block_size: tokens of a block.
    """

    inputs: PassInputs
    sequence: CachedSequence
    length: int
    block_size: int

    @classmethod
    def behind(cls, inputs: PassInputs | None, batch: Sequence[Rows], block_size: int) -> NextRow | None:
        """What follows a pass over a batch; `None` where that was not of one row, or rows have more inputs.

        Args:
            inputs: of the pass, if its graph has fixed shapes.
            batch: its rows.
            block_size: tokens of a block.
        """
        if inputs is None or len(batch[0].tokens) > 1 or any(name in inputs.names for name in _OTHERS):
            return None
        return cls(inputs, batch[0].sequence, batch[0].context, block_size)

    def run(self, sequence: CachedSequence, token: int) -> tuple[NDArray[np.float32], float] | None:
        """Compute the row of a token and advance its sequence.

        Returns:
            Logits f32 `[1, vocab]`, valid until the next pass, and microseconds inside the model; `None`
            where the row is not the one behind the last, or begins a block.
        """
        behind = sequence is self.sequence and sequence.length == self.length
        if not behind or self.length % self.block_size == 0:
            return None
        inputs = self.inputs
        inputs.array("input_ids")[0] = token
        for name in _COUNTED:
            place = inputs.array(name)
            np.add(place, 1, out=place)
        if VERIFY_TABLES in inputs.names:
            inputs.array(VERIFY_TABLES)[_PAST] += 1
        duration = inputs.infer()
        sequence.verified_from = self.length
        self.length = sequence.length = self.length + 1
        logits: NDArray[np.float32] = inputs.request.get_tensor("logits").data
        return logits.reshape(1, -1), duration
