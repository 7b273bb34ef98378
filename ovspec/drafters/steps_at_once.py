"""Drafts of one sequence, all steps in one graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.generation.sequence import Sequence
from ovspec.runtime.unrolled_steps import UnrolledGraph, UnrolledSteps


def takes_logits(sequence: Sequence, vocab_size: int) -> bool:
    """Whether the next tokens follow from logits, temperature and random numbers alone.

    A confidence threshold ends drafts; lenient acceptance and block verification need the distributions.
    """
    settings, sampling = sequence.settings, sequence.settings.sampling
    cut = sampling.top_p < 1.0 or sampling.min_p > 0.0 or 0 < sampling.top_k < vocab_size
    whole = settings.assistant_confidence_threshold == 0.0 and settings.acceptance_threshold == 1.0
    whole = whole and settings.acceptance_rule == "coupled"
    return whole and not (sampling.do_sample and cut) and sequence.processor.leaves_logits


def draft_at_once(
    unrolled: UnrolledSteps,
    graph: UnrolledGraph,
    sequence: Sequence,
    tokens: list[int],
    steps: int,
    features: NDArray[np.float32] | None = None,
) -> Proposal | None:
    """The draft of a graph, as passes draw it; `None` where the cache has to grow first.

    Args:
        unrolled: whose graph it is.
        graph: of as many steps as are to be drafted, or more.
        sequence: with settings for which `takes_logits`, and `tokens` not in the draft's cache.
        tokens, features: as of `UnrolledSteps.run`.
        steps: tokens to draft.
    """
    sampling, ids = sequence.settings.sampling, unrolled.ids
    if not sampling.do_sample and graph.is_noisy:
        graph.noise[:] = 0.0
    graph.is_noisy = sampling.do_sample
    drawn = graph.noise[:steps] if sampling.do_sample else ()
    for position, noise in enumerate(drawn, len(sequence.tokens)):
        if ids is None:
            noise[:] = sequence.coupling.noise(position, len(noise))
        else:
            np.take(sequence.coupling.noise(position, unrolled.vocab_size), ids, out=noise)
    temperature = sampling.temperature if sampling.do_sample else 1.0
    drafted = unrolled.run(graph, sequence.draft, tokens, temperature, features)
    return None if drafted is None else Proposal(drafted[:steps])
