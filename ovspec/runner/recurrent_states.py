"""States of layers of linear attention: slots of sequences, and the tensors that hold them.

Such a layer has read the text into a state of one size, which the next token changes. There is no length to
set back: to drop a rejected token is to go on from the state before it. So a pass that verifies a draft
writes the state behind each of its rows to a slot of its own, and a rollback chooses a slot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CacheTensor
from ovspec.cache.cache_memory import HostBlocks
from ovspec.cache.sequence_states import EMPTY, MOST_STATES, SequenceStates
from ovspec.graphs.compile import state_tensors
from ovspec.passes.tables import Rows

_FIRST_SLOTS = 4


class RecurrentStates:
    """The state tables of one compiled model, as OpenVINO's paged operations read and write them.

    Args:
        request: that reads and writes them.
        specs: the tables; a slot is one entry of each.

    """

    names = frozenset({"la.block_indices", "la.block_indices_begins", "la.past_lens", "la.cache_interval"})

    def __init__(self, request: ov.InferRequest, specs: Sequence[CacheTensor]) -> None:
        self.specs, self._request = tuple(specs), request
        self._tables: dict[str, HostBlocks] = {}
        self._capacity = 0
        self._free: list[int] = []
        self._shared = Counter[int]()
        # What the pass that is being computed writes.
        self._writes: list[tuple[SequenceStates, dict[int, int]]] = []

    @classmethod
    def of(cls, compiled: ov.CompiledModel, request: ov.InferRequest) -> RecurrentStates | None:
        """The states of a compiled model; `None` where all of its layers keep keys and values."""
        specs = state_tensors(compiled)
        return cls(request, specs) if specs else None

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state of all layers."""
        return sum(math.prod(spec.block_shape) * int(spec.element_type.size) for spec in self.specs)

    @property
    def held(self) -> int:
        """Slots that hold a state, without the empty one."""
        return max(0, self._capacity - 1 - len(self._free))

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """The tables of a pass: for every sequence the slot that it reads, and those that it writes.

        The first row that logits are asked for is an accepted token, those after it may be rejected. States
        are kept at equal distances, each in a slot of its own: layers of Mamba write no slot twice, and none
        where the distance, `la.cache_interval`, is 0. `la.past_lens` shifts them to end behind all rows.
        """
        self._give_back()
        indices, counts, intervals, shifts = list[int](), [0], list[int](), list[int]()
        for rows in batch:
            states = rows.sequence.states
            if states is None:
                states = rows.sequence.states = SequenceStates(self._free, self._shared)
            states.cut(rows.past)
            states.keep(rows.past)
            first = states.slot(rows.past)
            length = len(rows.tokens)
            interval = kept_every(length, rows.sampled)
            lengths = range(rows.context, rows.past, -interval)[::-1]
            slots = dict(zip(lengths, self._take(len(lengths)), strict=True))
            self._writes.append((states, slots))
            indices += [first, *slots.values()]
            counts.append(1 + len(slots))
            intervals.append(interval)
            shifts.append(-length % interval)
        return {
            "la.block_indices": np.array(indices, np.int32),
            "la.block_indices_begins": np.array(list(accumulate(counts)), np.int32),
            "la.past_lens": np.array(shifts, np.int32),
            "la.cache_interval": np.array(intervals, np.int32),
        }

    def finish(self) -> None:
        """Let the sequences of the pass hold what it wrote."""
        for states, slots in self._writes:
            states.add(slots)
        self._writes.clear()

    def _give_back(self) -> None:
        """Free the slots of a pass that failed."""
        for _, slots in self._writes:
            self._free += slots.values()
        self._writes.clear()

    def _take(self, count: int) -> list[int]:
        if count > len(self._free):
            self._grow(self._capacity + count - len(self._free))
        return [self._free.pop() for _ in range(count)]

    def _grow(self, slots: int) -> None:
        """Grow every table to at least so many slots and one, and keep the contents."""
        capacity = max(slots + (self._capacity == 0), 2 * self._capacity, _FIRST_SLOTS)
        for spec in self.specs:
            try:
                grown = HostBlocks(spec.element_type, [capacity, *spec.block_shape])
            except (MemoryError, RuntimeError) as error:
                raise RuntimeError(
                    f"the states of linear attention can't grow to {capacity} slots "
                    f"({capacity * self.slot_bytes / 1e9:.1f} GB): out of memory; run fewer requests at a "
                    "time, or draft fewer tokens"
                ) from error
            if (old := self._tables.get(spec.name)) is None:
                nothing = math.prod(spec.block_shape) * int(spec.element_type.size)
                grown.write(np.array([EMPTY]), np.zeros((1, nothing), np.uint8))
            else:
                grown.copy(old, 0, 0, self._capacity)
            self._tables[spec.name] = grown
            self._request.set_tensor(spec.name, grown.tensor)
        self._free += range(capacity - 1, max(self._capacity, EMPTY + 1) - 1, -1)
        self._capacity = capacity


def kept_every(rows: int, sampled: int) -> int:
    """Rows between two states that a pass keeps.

    Args:
        rows: of the pass.
        sampled: the last so many of them have logits, so that all but the first of these may be rejected.
    """
    return rows if sampled <= 1 else -(-rows // MOST_STATES)
