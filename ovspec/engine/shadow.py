"""Shadow drafts: what a drafter without a model would have proposed, compared with what is decoded."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ovspec.drafters.drafter import Drafter
from ovspec.generation.sequence import Sequence

_OPEN = "shadow"  # the last shadow draft of a sequence, where it is not decided


@dataclass(frozen=True, slots=True)
class _Shadow:
    """A draft that nobody verifies: its tokens, and how many of its sequence they follow."""

    tokens: list[int]
    position: int


class ShadowDrafts:
    """Learns what drafts would be accepted while none are verified.

    A proposal that was not drawn from a distribution is accepted as often as decoding comes to its tokens, so
    decoding itself says what drafting would yield, for the price of a lookup.

    Args:
        drafter: one that `needs_no_model`.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def draft(self, sequences: SequenceOf[Sequence], tokens: int) -> None:
        """Propose for every sequence whose last shadow draft is decided."""
        counts = [0 if _OPEN in sequence.draft_states else tokens for sequence in sequences]
        proposals = self._drafter.propose(sequences, counts)
        for sequence, count, proposal in zip(sequences, counts, proposals, strict=True):
            if count:
                sequence.draft_states[_OPEN] = _Shadow(proposal.tokens, len(sequence.tokens))

    def decided(self, sequences: SequenceOf[Sequence]) -> tuple[tuple[int, int], ...]:
        """Tokens proposed and tokens that came true, of every draft decided by now."""
        found = []
        for sequence in sequences:
            shadow: _Shadow | None = sequence.draft_states.get(_OPEN)
            if shadow is None:
                continue
            decoded = sequence.tokens[shadow.position :]
            count = min(len(decoded), len(shadow.tokens))
            same = next((i for i in range(count) if decoded[i] != shadow.tokens[i]), count)
            if same < count or count == len(shadow.tokens):
                found.append((len(shadow.tokens), same))
                del sequence.draft_states[_OPEN]
        return tuple(found)
