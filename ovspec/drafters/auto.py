"""`auto`: what a lookup finds behind a long match, else what the model drafts, if there is one."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence
from ovspec.schedule.schedule import ModelAsk


class AutoDrafter(Drafter):
    """Takes the lookup's tokens where its match is long enough, and asks the model elsewhere.

    Args:
        lookup: a drafter that looks up.
        model: one that has a model, if there is one.
    """

    name = "auto"
    looks_up = True

    def __init__(self, lookup: Drafter, model: Drafter | None) -> None:
        self.drafters = [lookup, *([model] if model else [])]
        self.has_model = model is not None
        self.reads_states = any(drafter.reads_states for drafter in self.drafters)
        self.why_no_trees = self.drafters[-1].why_no_trees

    def propose(
        self,
        sequences: SequenceOf[Sequence],
        counts: SequenceOf[int],
        of_model: SequenceOf[ModelAsk | None] = (),
    ) -> list[Proposal]:
        """The lookup's proposals; where their match is shorter than asked, or there are none, the model's."""
        self.last_duration = 0.0
        lookup, *models = self.drafters
        proposals = lookup.propose(sequences, counts)
        for model in models:
            given = of_model or [None] * len(counts)
            asks = [ask or ModelAsk(count) for ask, count in zip(given, counts, strict=True)]
            pairs = zip(proposals, asks, strict=True)
            open_ = [
                index
                for index, (found, ask) in enumerate(pairs)
                if ask.tokens and (not found.tokens or found.match < ask.least_match)
            ]
            if not open_:
                continue
            answers = model.propose([sequences[i] for i in open_], [asks[i].tokens for i in open_])
            self.last_duration = model.last_duration
            for index, answer in zip(open_, answers, strict=True):
                if answer.tokens:
                    proposals[index] = answer
        return proposals

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        return dict(enumerate(self.propose(sequences, counts)))

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
