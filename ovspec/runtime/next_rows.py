"""Repeats a pass of a few rows for the next tokens; only the inputs that differ are written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.tables import FEATURES, Rows, slots
from ovspec_ops.verify_attention import PAST_LEN
from ovspec_transforms import ROPE_LENGTHS, SLOT_MAPPING, VERIFY_TABLES

# Greater by one with every token before the rows, as long as these are in the same blocks. They are computed
# from the first pass and not from the last, which may have been cut short.
_COUNTED = ("position_ids", "past_lens", "max_context_len")
_OTHERS = (FEATURES, ROPE_LENGTHS)  # what rows depend on beside their tokens and their places


class NextRows:
    """Runs a graph again for the next rows of the same sequence, as many as before.

    In the same blocks rows differ from those before in their tokens and in four numbers.

    Args:
        inputs: of the last pass, whose graph has fixed shapes.
        rows: of that pass; logits are wanted of each, and none was added.
        block_size: tokens of a block.
    """

    __slots__ = (
        *("_block_size", "_counted", "_inputs", "_logits", "_past", "_rows", "_sequence", "_slots"),
        "_tables",
    )

    def __init__(self, inputs: PassInputs, rows: Rows, block_size: int) -> None:
        self._inputs, self._sequence, self._block_size = inputs, rows.sequence, block_size
        self._past, self._rows = rows.past, len(rows.tokens)
        # The numbers that count tokens, each with its value for a text without tokens before the rows.
        self._counted: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = []
        self._tables: NDArray[np.generic] | None = None
        self._slots: NDArray[np.generic] | None = None
        self._logits: NDArray[np.float32] | None = None

    @classmethod
    def behind(cls, inputs: PassInputs, rows: Rows, block_size: int) -> NextRows | None:
        """What follows a pass; `None` where not all of its logits are wanted, or rows have more inputs."""
        if rows.sampled < len(rows.tokens) or any(name in inputs.names for name in _OTHERS):
            return None
        return cls(inputs, rows, block_size)

    def run(
        self, sequence: CachedSequence, tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], float] | None:
        """Compute the rows of tokens and advance their sequence.

        Returns:
            Logits f32 `[rows, vocab]`, valid until the next pass, and microseconds inside the model; `None`
            where rows of another sequence came before, other blocks are read or written, or the tokens are
            not as many.
        """
        past, rows, size = sequence.length, self._rows, self._block_size
        if sequence is not self._sequence or len(tokens) != rows:
            return None
        if past <= self._past:  # the first pass was cut short, perhaps before its inputs were written
            return None
        last = past + rows - 1
        if past // size != self._past // size or last // size != (self._past + rows - 1) // size:
            return None
        inputs = self._inputs
        if not self._counted:
            self._tables = inputs.array(VERIFY_TABLES) if VERIFY_TABLES in inputs.names else None
            self._slots = inputs.array(SLOT_MAPPING) if SLOT_MAPPING in inputs.names else None
            places = [inputs.array(name) for name in _COUNTED if name in inputs.names]
            self._counted = [(place, np.subtract(place, self._past, dtype=place.dtype)) for place in places]
        inputs.array("input_ids")[:] = tokens
        for place, offset in self._counted:
            np.add(offset, past, out=place)
        if self._tables is not None:
            self._tables[PAST_LEN] = past
        if self._slots is not None:
            self._slots[:] = slots(sequence.table, past, past + rows, size)
        duration = inputs.infer()
        sequence.length = past + rows
        if self._logits is None:
            self._logits = inputs.request.get_tensor("logits").data.reshape(rows, -1)
        return self._logits, duration
