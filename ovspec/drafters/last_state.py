"""A head without a cache: it drafts from the target's state at the last position that was read."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.clock import microseconds
from ovspec.drafters.draft_tree import depth_of
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Last:
    """The state of the last position that the target has read.

    Attributes:
        position: of the text.
        state: f32 `[hidden size]`.
    """

    position: int
    state: NDArray[np.float32]


class LastStateHead(Drafter):
    """Keeps the last state of every sequence; nothing of a draft is kept.

    Args:
        states: f32 `[rows, hidden size]` to what `_drafts` begins with.
    """

    reads_states = True
    why_no_trees = ""

    def __init__(self, states: ov.CompiledModel) -> None:
        self._request = states.create_infer_request()

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        asked = self._asked(sequences, counts)
        if not asked:
            return {}
        states = np.stack([sequences[index].draft_states[self.name].state for index in asked])
        started = microseconds()
        given = self._request.infer({0: states})[0]
        self.last_duration = microseconds() - started
        drafts = self._drafts([sequences[i] for i in asked], [counts[i] for i in asked], given)
        return dict(zip(asked, drafts, strict=True))

    @abstractmethod
    def _drafts(
        self, sequences: SequenceOf[Sequence], counts: SequenceOf[int], given: NDArray[np.float32]
    ) -> list[Proposal]:
        """The drafts of sequences, from what their last states give, `[sequences, ...]`."""

    def observe(self, sequence: Sequence, begin: int, states: NDArray[np.float32]) -> None:
        """Keep the state of the last token."""
        sequence.draft_states[self.name] = _Last(begin + len(states) - 1, states[-1].copy())

    def release(self, sequence: Sequence) -> None:
        """Forget the sequence's state."""
        sequence.draft_states.pop(self.name, None)

    def _asked(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> list[int]:
        """The sequences that may draft and whose last state is there."""
        return [
            index
            for index, (sequence, count) in enumerate(zip(sequences, counts, strict=True))
            if min(count, depth_of(sequence)) > 0 and self._position(sequence) == len(sequence.tokens) - 2
        ]

    def _position(self, sequence: Sequence) -> float:
        last: _Last | None = sequence.draft_states.get(self.name)
        return math.nan if last is None else last.position
