"""`auto`: cheap drafters are asked first, the model only where they have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence

# Below this share of accepted tokens a drafter is passed over, but for one try in so many rounds.
_MIN_ACCEPTED = 0.3
_RETRY_EVERY = 8
_DECAY = 0.8


@dataclass(slots=True)
class _Record:
    """How the drafters fared with a sequence.

    Attributes:
        accepted: of each drafter, the share of its tokens that stood, recent ones weighing more.
        skipped: rounds since each was last asked.
        asked: which drafter made the last draft.
        draft: that draft.
        position: the number of tokens that it continued.
    """

    accepted: list[float]
    skipped: list[int]
    asked: int = -1
    draft: list[int] = field(default_factory=list)
    position: int = 0


class AutoDrafter(Drafter):
    """Takes the first drafter that proposes something, of those that have done well with the sequence.

    Args:
        drafters: cheap ones first; the last is asked whatever its record is.
    """

    name = "auto"

    def __init__(self, drafters: SequenceOf[Drafter]) -> None:
        self.drafters = list(drafters)

    def propose(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> list[Proposal]:
        """One drafter's proposal for each sequence; those that come to the same drafter share its passes."""
        self.last_duration = 0.0
        proposals = [Proposal() for _ in sequences]
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
                    record.asked, record.draft = place, answer.tokens
                    record.position = len(sequence.tokens)
                    open_.remove(index)
        return proposals

    def unread(self, sequences: SequenceOf[Sequence]) -> int:
        """Of the last drafter, should it come to be asked."""
        return self.drafters[-1].unread(sequences)

    def release(self, sequence: Sequence) -> None:
        """Release what every drafter holds."""
        for drafter in self.drafters:
            drafter.release(sequence)

    def _judged(self, sequence: Sequence) -> _Record:
        """The sequence's record, its last draft compared with what became of it."""
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
