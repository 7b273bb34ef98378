"""Drafts whose places are known all at once, as a chain or a tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.draft_tree import DraftTree
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import draw
from ovspec.generation.sequence import Sequence


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
