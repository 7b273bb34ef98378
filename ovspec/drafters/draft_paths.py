"""A draft that grows by a level at a time, as a chain or a tree, and what each of its paths carries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.draft_tree import DraftTree, depth_of
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import draw
from ovspec.generation.sequence import Sequence


class DraftPaths:
    """One sequence's draft.

    Args:
        sequence: that it continues.
        count: largest number of tokens.
        depth: largest number of levels.
        size: numbers that a path carries at first, zeros.

    Attributes:
        tokens: i64 `[paths]`, the last of every path that goes on.
        carried: f32 `[paths, size]`; whoever computes a level may put other numbers there.
    """

    def __init__(self, sequence: Sequence, count: int, depth: int, size: int = 0) -> None:
        depth = int(min(count, depth_of(sequence), depth))
        self._sequence, self._depth = sequence, depth
        is_tree = sequence.settings.branching_factor > 1
        self._tree = DraftTree(sequence, count, depth) if is_tree else None
        self._chain = Proposal()
        self.tokens = np.array(sequence.tokens[-1:], np.int64)
        self.carried = np.zeros((1, size), np.float32)

    def grow(self, logits: NDArray[np.float32], confidences: NDArray[np.float32] | None = None) -> bool:
        """Continue the paths; whether some are to go on.

        Args:
            logits: f32 `[paths, vocab]`.
            confidences: f32 `[paths]`, how likely the next token is to be right by the head itself, if it
                says so; a tree goes by its tokens' probabilities.
        """
        tree = self._tree
        if tree is None:
            drafted = len(self._chain.tokens)
            more = draw(self._sequence, self._chain, logits[0])
            if confidences is not None and len(self._chain.tokens) > drafted:
                said = self._chain.confidences = self._chain.confidences or []
                said.append((said[-1] if said else 1.0) * float(confidences[0]))
            self.tokens = np.array(self._chain.tokens[-1:], np.int64)
            return more and len(self._chain.tokens) < self._depth
        places = {node: place for place, node in enumerate(tree.frontier)}
        if not tree.grow(logits):
            return False
        self.carried = self.carried[[places[tree.parents[node]] for node in tree.frontier]]
        self.tokens = tree.rows[0][-len(tree.frontier) :]
        return True

    def proposal(self) -> Proposal:
        """What has been drafted."""
        return self._chain if self._tree is None else self._tree.proposal()
