"""The recurrent states of one text: which slot holds the state behind how many of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

#: The state before any text: zeros, which nothing overwrites.
EMPTY = 0
#: States that are kept at most behind rows of a pass, or behind tokens of a draft of one token a pass. Where
#: there are more, every few have one, and what a rollback to between them loses is read again.
MOST_STATES = 16


@dataclass(slots=True)
class SequenceStates:
    """Slots of one sequence in the state tables of a model.

    Attributes:
        free: slots that nobody holds, of all sequences together.
        shared: how many others hold a slot too, of all sequences together; no pass writes to a held slot.
        slots: by the number of tokens that a state has seen.
        kept: tokens that a later rollback comes back to; their state is held until then.
        since: tokens behind which a draft of one token a pass began: states from there on are kept.
    """

    free: list[int]
    shared: Counter[int] = field(default_factory=Counter)
    slots: dict[int, int] = field(default_factory=dict)
    kept: int = 0
    since: int | None = None

    def slot(self, length: int) -> int:
        """The slot of the state behind so many tokens.

        Raises:
            ValueError: no such state is held.
        """
        if length and length not in self.slots:
            raise ValueError(
                f"no state of linear attention behind {length} tokens: held {sorted(self.slots)}"
            )
        return self.slots.get(length, EMPTY)

    def fork(self) -> SequenceStates:
        """The same states once more."""
        self.shared.update(self.slots.values())
        return SequenceStates(self.free, self.shared, dict(self.slots), self.kept, self.since)

    def add(self, slots: Mapping[int, int]) -> None:
        """Hold states that a pass has written, by their numbers of tokens."""
        self.slots |= slots

    def cut(self, length: int) -> int:
        """Drop the states of more than `length` tokens; the number of tokens of the longest one left."""
        self._drop({held for held in self.slots if held > length})
        return max(self.slots, default=0)

    def keep(self, length: int) -> None:
        """Drop states behind fewer than so many tokens that nothing comes back to.

        Of a draft of one token a pass `MOST_STATES` stay.
        """
        least = length if self.since is None else min(length, self.since)
        kept = max((held for held in self.slots if held <= self.kept), default=0)
        self._drop({held for held in self.slots if held < least and held != kept})
        drafted = sorted(held for held in self.slots if least <= held <= length)
        if len(drafted) > MOST_STATES:
            # The one between the nearest two; of equal ones the later, as most drafts are rejected early.
            gaps = zip(drafted, drafted[1:-1], drafted[2:], strict=False)
            self._drop({min(gaps, key=lambda three: (three[2] - three[0], -three[1]))[1]})

    def clear(self) -> None:
        """Drop all."""
        self.cut(0)
        self.kept, self.since = 0, None

    def _drop(self, lengths: set[int]) -> None:
        for slot in [self.slots.pop(length) for length in lengths]:
            if self.shared[slot]:
                self.shared[slot] -= 1
            else:
                self.free.append(slot)
