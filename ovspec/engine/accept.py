"""Acceptance of a draft by a sequence's own rule: greedy, lenient, coupled or sampled; chains and trees."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.generation.sequence import Sequence
from ovspec.sampling.acceptance import Accepted, greedy_accept, lenient_accept, speculative_sample
from ovspec.sampling.sampling import Distribution
from ovspec.sampling.tree_acceptance import AcceptedPath, follow_choices, sample_path


def accept(
    sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]
) -> tuple[Accepted, list[Distribution | None]]:
    """Apply the sequence's acceptance rule to a draft.

    Returns:
        The outcome, and for every accepted token and the one that follows them the distribution p that it
        follows. `None` for tokens of greedy decoding or of coupled sampling.
    """
    x, q, settings, processor = proposal.tokens, proposal.q, sequence.settings, sequence.processor
    threshold, seen = settings.acceptance_threshold, list[Distribution]()

    def p(i: int) -> Distribution:
        seen.append(processor.distribution(logits[i], x[:i]))
        return seen[-1]

    if settings.sampling.do_sample and not settings.coupled:
        accepted = speculative_sample(x, q or None, p, sequence.streams, threshold)
        return accepted, list(seen)

    def choices() -> Iterator[int]:
        for i, row in enumerate(logits):
            if settings.coupled:
                yield sequence.coupling.draw(p(i), len(sequence.tokens) + i)
            else:
                yield processor.argmax(row, x[:i])

    def ratio(i: int) -> float:
        if settings.coupled:
            q_i = q[i] if q else None
            return seen[i].prob(x[i]) / (1.0 if q_i is None else q_i.prob(x[i]))
        row = processor.process(logits[i], x[:i])
        return float(np.exp(row[x[i]] - row.max(), dtype=np.float64))

    if threshold < 1.0:
        accepted = lenient_accept(x, choices(), ratio, threshold)
    else:
        accepted = greedy_accept(x, choices())
    return accepted, [None] * (accepted.n + 1)


def accept_tree(
    sequence: Sequence, proposal: Proposal, parents: SequenceOf[int], logits: NDArray[np.float32]
) -> tuple[AcceptedPath, list[Distribution | None]]:
    """`accept` for a draft that is a tree.

    Raises:
        ValueError: an acceptance threshold below 1; there is no rule for trees.
    """
    x, settings, processor = proposal.tokens, sequence.settings, sequence.processor
    seen: list[Distribution] = []
    if settings.acceptance_threshold < 1.0:
        raise ValueError(
            f"acceptance_threshold={settings.acceptance_threshold:g} has no rule for trees: leave it out"
        )

    def p(path: list[int]) -> Distribution:
        row = logits[path[-1] + 1 if path else 0]
        seen.append(processor.distribution(row, [x[node] for node in path]))
        return seen[-1]

    def choice(path: list[int]) -> int:
        if settings.coupled:
            return sequence.coupling.draw(p(path), len(sequence.tokens) + len(path))
        return processor.argmax(logits[path[-1] + 1 if path else 0], [x[node] for node in path])

    if settings.sampling.do_sample and not settings.coupled:
        accepted = sample_path(x, parents, proposal.q or None, p, sequence.streams)
        return accepted, list(seen)
    accepted = follow_choices(x, parents, choice)
    return accepted, [None] * (len(accepted.nodes) + 1)
