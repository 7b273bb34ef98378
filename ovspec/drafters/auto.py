"""`auto`: asks cheap drafters first, and the draft model only if they propose nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence

# A drafter with a lower share of accepted tokens is skipped, but for one attempt every _RETRY_EVERY rounds.
_MIN_ACCEPTED = 0.3
_RETRY_EVERY = 8
_DECAY = 0.8


@dataclass(slots=True)
class _Record:
    """Record of the drafters for one sequence.

    Attributes:
        accepted: share of accepted tokens per drafter, with exponential decay.
        skipped: rounds since each drafter was last asked.
        asked: which drafter made the last draft.
        draft: that draft.
        position: length of the sequence when that draft was made.
    """

    accepted: list[float]
    skipped: list[int]
    asked: int = -1
    draft: list[int] = field(default_factory=list)
    position: int = 0


class AutoDrafter(Drafter):
    """Takes the first proposal of the drafters whose tokens were often accepted in this sequence.

    Args:
        drafters: cheap ones first; the last is always asked.
    """

    name = "auto"

    def __init__(self, drafters: SequenceOf[Drafter]) -> None:
        self.drafters = list(drafters)
        self.reads_states = any(drafter.reads_states for drafter in drafters)
        self.why_no_trees = self.drafters[-1].why_no_trees

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """Sequences that use the same drafter share its passes."""
        proposals: dict[int, Proposal] = {}
        records = [self._judged(sequence) for sequence in sequences]
        open_ = [index for index, count in enumerate(counts) if count > 0]
        for place, drafter in enumerate(self.drafters):
            asked = [index for index in open_ if self._is_worth_asking(records[index], place)]
            if not asked:
                continue
            answers = drafter.propose([sequences[i] for i in asked], [counts[i] for i in asked])
            self.last_duration += drafter.last_duration
            for index, answer in zip(asked, answers, strict=True):
                if answer.tokens:
                    proposals[index] = answer
                    record, sequence = records[index], sequences[index]
                    record.asked, record.draft = place, list(answer.tokens)  # a grammar may cut them
                    record.position = len(sequence.tokens)
                    open_.remove(index)
        return proposals

    def observe(self, sequence: Sequence, begin: int, states: NDArray[np.float32]) -> None:
        """Tell every drafter that reads states."""
        for drafter in self.drafters:
            if drafter.reads_states:
                drafter.observe(sequence, begin, states)

    def unread(self, sequences: SequenceOf[Sequence]) -> int:
        """Unread tokens of the last drafter, which alone may have a model."""
        return self.drafters[-1].unread(sequences)

    def limit_cache(self, cached_bytes: int) -> None:
        """Tell every drafter."""
        for drafter in self.drafters:
            drafter.limit_cache(cached_bytes)

    def warm_up(self, rows: int) -> None:
        """Warm every drafter up."""
        for drafter in self.drafters:
            drafter.warm_up(rows)

    def begin(self, sequence: Sequence) -> None:
        """Tell every drafter."""
        for drafter in self.drafters:
            drafter.begin(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free what every drafter holds of the sequence."""
        for drafter in self.drafters:
            drafter.release(sequence)

    def _judged(self, sequence: Sequence) -> _Record:
        """The record of the sequence, updated with the outcome of its last draft."""
        count = len(self.drafters)
        record: _Record = sequence.draft_states.setdefault(self.name, _Record([1.0] * count, [0] * count))
        if record.draft:
            stood = 0
            for drafted, token in zip(record.draft, sequence.tokens[record.position :], strict=False):
                if drafted != token:
                    break
                stood += 1
            share = stood / len(record.draft)
            record.accepted[record.asked] = _DECAY * record.accepted[record.asked] + (1 - _DECAY) * share
            record.draft = []
        return record

    def _is_worth_asking(self, record: _Record, place: int) -> bool:
        last = place == len(self.drafters) - 1
        if last or record.accepted[place] >= _MIN_ACCEPTED or record.skipped[place] >= _RETRY_EVERY:
            record.skipped[place] = 0
            return True
        record.skipped[place] += 1
        return False
