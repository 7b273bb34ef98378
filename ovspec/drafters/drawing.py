"""Choice of the next draft token from a draft model's logits."""

from __future__ import annotations

import functools
import logging

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.generation.sequence import Sequence
from ovspec.sampling.constraint import GrammarError
from ovspec.sampling.sampling import NotFiniteError

_LOG = logging.getLogger(__name__)


def draw(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> bool:
    """Add the next draft token; return whether drafting continues after it.

    A token below the confidence threshold is still proposed: it is there already, and may be right. Logits
    that are not finite end the draft: the target can answer without it.

    Args:
        sequence: the sequence that the draft continues.
        proposal: its draft so far, extended in place.
        logits: f32 `[vocab]` of the drafter's model.
    """
    settings, drafted = sequence.settings, proposal.tokens
    try:
        token = _token(sequence, proposal, logits)
    except GrammarError:
        return False  # the target's row says so
    except NotFiniteError as error:
        if sequence.processor.constraint is None:  # a draft's vocabulary may have nothing that is allowed
            warn_of_logits(str(error))
        return False
    drafted.append(token)
    threshold = settings.assistant_confidence_threshold
    return threshold == 0.0 or _probability(logits, token) >= threshold


@functools.cache
def warn_of_logits(what: str) -> None:
    """Say once that a drafter's logits give no draft."""
    _LOG.warning("ovspec: a draft ends early, which costs speed and no answer: %s", what)


def _token(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> int:
    settings, drafted = sequence.settings, proposal.tokens
    if settings.sampling.do_sample:
        q = sequence.processor.distribution(logits, drafted)
        if settings.acceptance_rule == "block":
            token = q.draw(sequence.coupling.uncoupled.random())
        else:
            token = sequence.coupling.draw(q, len(sequence.tokens) + len(drafted))
        proposal.q.append(q)
        return token
    return sequence.processor.argmax(logits, drafted)


def _probability(logits: NDArray[np.float32], token: int) -> float:
    return float(1.0 / np.exp(logits - logits[token], dtype=np.float64).sum())
