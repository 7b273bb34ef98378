"""`auto`: what a lookup finds behind a long match, else what the model drafts, if there is one."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.drafter_group import DrafterGroup
from ovspec.generation.sequence import Sequence
from ovspec.schedule.schedule import ModelAsk


class AutoDrafter(DrafterGroup):
    """Takes the lookup's tokens where its match is long enough, and asks the model elsewhere.

    Args:
        lookup: a drafter that looks up.
        model: one that has a model, if there is one.
    """

    name = "auto"
    looks_up = True

    def __init__(self, lookup: Drafter, model: Drafter | None) -> None:
        super().__init__([lookup, *([model] if model else [])])
        self.has_model = model is not None

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
