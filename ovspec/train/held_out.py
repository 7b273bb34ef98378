"""How far a head's drafts agree with its target on texts that it did not learn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class HeldOut:
    """Agreement over held-out texts.

    The target's own choice is compared at every place of a text, whatever the text says there. On texts that
    the target wrote itself the figures are those of greedy decoding; on others they are an estimate.

    Attributes:
        right: per draft position, how many drafts were right up to it.
        asked: per draft position, of how many.
        tokens: that passes with these drafts yield.
        passes: that it takes.
    """

    right: NDArray[np.int64]
    asked: NDArray[np.int64]
    tokens: int = 0
    passes: int = 0

    @classmethod
    def of(cls, depth: int) -> HeldOut:
        """Nothing yet, of drafts of so many tokens."""
        return cls(np.zeros(depth, np.int64), np.zeros(depth, np.int64))

    def add(self, hits: NDArray[np.bool_]) -> None:
        """Add a text.

        Args:
            hits: `[places, depth]`, whether token k of the draft after a place is the target's choice;
                places that lie behind the end of the text are False.
        """
        whole = np.logical_and.accumulate(hits, 1)
        for depth in range(hits.shape[1]):
            count = max(0, len(hits) - depth)
            self.asked[depth] += count
            self.right[depth] += int(whole[:count, depth].sum())
        place = 0
        lengths = whole.sum(1)
        while place < len(hits):
            gained = min(int(lengths[place]) + 1, len(hits) - place)
            self.tokens, self.passes, place = self.tokens + gained, self.passes + 1, place + gained

    @property
    def tokens_per_pass(self) -> float:
        """Mean acceptance length: accepted drafts, and the target's own token."""
        return self.tokens / max(1, self.passes)

    @property
    def acceptance(self) -> list[float]:
        """Per draft position, the share of drafts that are right up to it."""
        shares: list[float] = (self.right / np.maximum(1, self.asked)).tolist()
        return shares
