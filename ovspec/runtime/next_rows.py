"""Repeats a pass of a few rows for the next tokens; only the inputs that differ are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.tables import FEATURES, Rows
from ovspec_transforms import ROPE_LENGTHS, VERIFY_TABLES

# Greater by one with every token before the rows, as long as these are in the same blocks.
_COUNTED = ("position_ids", "past_lens", "max_context_len")
_PAST = 4  # where `verify_tables` of one sequence hold the tokens before its rows, see `pack_tables`
_OTHERS = (FEATURES, ROPE_LENGTHS)  # what rows depend on beside their tokens and their places


@dataclass(slots=True)
class NextRows:
    """Runs a graph again for the next rows of the same sequence, as many as before.

    In the same blocks rows differ from those before in their tokens and in four numbers.

    Args:
        inputs: of the last pass, whose graph has the shapes of these rows.
        sequence: whose rows these were.
        past: tokens before them.
        rows: their number; logits are wanted of each.
        block_size: tokens of a block.
    """

    inputs: PassInputs
    sequence: CachedSequence
    past: int
    rows: int
    block_size: int

    @classmethod
    def behind(cls, inputs: PassInputs | None, batch: Sequence[Rows], block_size: int) -> NextRows | None:
        """What follows a pass over a batch; `None` where not all logits are wanted, or rows have more inputs.

        Args:
            inputs: of the pass, if its graph has fixed shapes.
            batch: its rows, none added.
            block_size: tokens of a block.
        """
        rows = batch[0]
        if inputs is None or rows.sampled < len(rows.tokens) or any(name in inputs.names for name in _OTHERS):
            return None
        return cls(inputs, rows.sequence, rows.past, len(rows.tokens), block_size)

    def run(self, sequence: CachedSequence, tokens: Sequence[int]) -> tuple[NDArray[np.float32], float] | None:
        """Compute the rows of tokens and advance their sequence.

        Returns:
            Logits f32 `[rows, vocab]`, valid until the next pass, and microseconds inside the model; `None`
            where rows of another sequence came before, other blocks are read or written, or the tokens are
            not as many.
        """
        past = sequence.length
        if sequence is not self.sequence or len(tokens) != self.rows:
            return None
        if self._blocks(past) != self._blocks(self.past):
            return None
        inputs, shift = self.inputs, past - self.past
        inputs.array("input_ids")[:] = tokens
        for name in _COUNTED:
            place = inputs.array(name)
            np.add(place, shift, out=place)
        if VERIFY_TABLES in inputs.names:
            inputs.array(VERIFY_TABLES)[_PAST] = past
        self.past = past
        duration = inputs.infer()
        sequence.verified_from, sequence.length = past, past + self.rows
        logits: NDArray[np.float32] = inputs.request.get_tensor("logits").data
        return logits.reshape(self.rows, -1), duration

    def _blocks(self, past: int) -> tuple[int, int]:
        """The first and the last block that rows behind so many tokens are written to."""
        return past // self.block_size, (past + self.rows - 1) // self.block_size
