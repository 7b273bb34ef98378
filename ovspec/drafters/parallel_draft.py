"""Drafts whose places are known all at once, as a chain or a tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.draft_tree import DraftTree
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import draw
from ovspec.generation.sequence import Sequence


@dataclass(frozen=True, slots=True)
class BlockLogits:
    """What a head has computed for the block of a sequence.

    Attributes:
        sequence: that the block continues.
        count: largest number of tokens to draft.
        logits: f32 `[drafted tokens, drafted vocabulary]`.
        states: f32 `[places, hidden]`, what the output layer reads; `None`: nobody asked for them.
        drafting: places of the block that draft, its last ones.
    """

    sequence: Sequence
    count: int
    logits: NDArray[np.float32]
    states: NDArray[np.float32] | None
    drafting: int


def parallel_draft(sequence: Sequence, count: int, places: NDArray[np.float32]) -> Proposal:
    """The draft of a sequence.

    Args:
        sequence: that it continues.
        count: largest number of tokens.
        places: f32 `[places, vocab]`, logits of the tokens that may follow, whatever stands between; as many
            as a path may have.
    """
    proposal = Proposal()
    if sequence.settings.branching_factor == 1:
        for row in places[:count]:
            if not draw(sequence, proposal, row):
                break
        return proposal
    tree = DraftTree(sequence, count, len(places))
    for row in places:
        if not tree.grow(np.broadcast_to(row, (len(tree.frontier), len(row)))):
            break
    return tree.proposal()
