"""Several drafters that are told of the same sequences."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence


class DrafterGroup(Drafter):
    """Tells all its drafters what happens; what is proposed is for its subclasses to say.

    Args:
        drafters: the last of them alone may have a model.
    """

    def __init__(self, drafters: SequenceOf[Drafter]) -> None:
        self.drafters = list(drafters)
        self.reads_states = any(drafter.reads_states for drafter in drafters)
        self.why_no_trees = self.drafters[-1].why_no_trees

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        return dict(enumerate(self.propose(sequences, counts)))

    def observe(self, sequence: Sequence, begin: int, states: NDArray[np.float32]) -> None:
        """Tell every drafter that reads states."""
        for drafter in self.drafters:
            if drafter.reads_states:
                drafter.observe(sequence, begin, states)

    def unread(self, sequences: SequenceOf[Sequence]) -> int:
        """Unread tokens of the last drafter."""
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
