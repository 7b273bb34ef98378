"""How a drafter that has a model picks its next token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.generation.sequence import Sequence


def draw(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> bool:
    """Add the next draft token; whether the drafter is confident enough to go on after it.

    The token that falls below the threshold is still proposed. Dropping it would make the
    proposals depend on what was drawn, and sampling inexact.

    Args:
        sequence: what is drafted for.
        proposal: its draft so far, extended in place.
        logits: f32 `[vocab]` of the drafter's model.
    """
    settings, drafted = sequence.settings, proposal.tokens
    if settings.sampling.do_sample:
        q = sequence.processor.distribution(logits, drafted)
        if settings.coupled:
            token = sequence.coupling.draw(q, len(sequence.tokens) + len(drafted))
        else:
            token = q.sample(sequence.streams.draft.random())
        proposal.q.append(q)
    else:
        token = sequence.processor.argmax(logits, drafted)
    drafted.append(token)
    threshold = settings.assistant_confidence_threshold
    return threshold == 0.0 or _probability(logits, token) >= threshold


def _probability(logits: NDArray[np.float32], token: int) -> float:
    return float(1.0 / np.exp(logits - logits[token], dtype=np.float64).sum())
