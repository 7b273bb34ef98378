"""Acceptance of a draft by a sequence's own rule: greedy, coupled sampling, block verification or lenient."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.generation.sequence import Sequence
from ovspec.sampling.acceptance import Accepted, accept_draft
from ovspec.sampling.block_verification import block_accept
from ovspec.sampling.sampling import Distribution, checked_max
from ovspec.sampling.tree_acceptance import AcceptedPath, follow_choices


def next_token(sequence: Sequence, logits: NDArray[np.float32]) -> int:
    """The token behind those of a sequence, from its logits f32 `[vocab]`."""
    if sequence.settings.sampling.do_sample:
        return sequence.coupling.draw(sequence.processor.distribution(logits), len(sequence.tokens))
    return sequence.processor.argmax(logits)


def accept(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> Accepted:
    """Apply the sequence's acceptance rule to a draft."""
    x, q, settings, processor = proposal.tokens, proposal.q, sequence.settings, sequence.processor
    if settings.acceptance_rule == "block" and x:
        return _accept_block(sequence, proposal, logits)
    samples, threshold, p = settings.sampling.do_sample, settings.acceptance_threshold, list[Distribution]()
    if not samples and threshold >= 1.0 and processor.leaves_logits:
        return _accept_greedily(x, logits)

    def choices() -> Iterator[int]:
        for i, row in enumerate(logits):
            if samples:
                p.append(processor.distribution(row, x[:i]))
                yield sequence.coupling.draw(p[i], len(sequence.tokens) + i)
            else:
                yield processor.argmax(row, x[:i])

    def ratio(i: int) -> float:
        if samples:
            q_i = q[i] if q else None
            return p[i].prob(x[i]) / (1.0 if q_i is None else q_i.prob(x[i]))
        row = processor.process(logits[i], x[:i])
        return float(np.exp(row[x[i]] - row.max(), dtype=np.float64))

    return accept_draft(x, choices(), ratio if threshold < 1.0 else None, threshold)


def _accept_greedily(x: SequenceOf[int], logits: NDArray[np.float32]) -> Accepted:
    """The rule where the target's tokens are the most probable ones of its logits as they are."""
    choices = logits.argmax(-1).tolist()  # 20 us less than row by row
    accepted = accept_draft(x, choices)
    for row, token in zip(logits[: accepted.n + 1], choices, strict=False):
        checked_max(row, row[token])
    return accepted


def _accept_block(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> Accepted:
    x, vocab_size = proposal.tokens, logits.shape[-1]
    given = zip(x, proposal.q or [None] * len(x), strict=True)
    return block_accept(
        x,
        [sequence.processor.distribution(row, x[:i]).dense(vocab_size) for i, row in enumerate(logits)],
        [(q or Distribution.one_hot(token)).dense(vocab_size) for token, q in given],
        sequence.coupling.uncoupled.random(len(x)),
        lambda law, n: sequence.coupling.draw(law, len(sequence.tokens) + n),
    )


def accept_tree(
    sequence: Sequence, proposal: Proposal, parents: SequenceOf[int], logits: NDArray[np.float32]
) -> AcceptedPath:
    """`accept` for a draft that is a tree.

    Raises:
        ValueError: an acceptance threshold below 1, or block verification; there is no rule for trees.
    """
    x, settings, processor = proposal.tokens, sequence.settings, sequence.processor
    if settings.acceptance_threshold < 1.0:
        raise ValueError(
            f"acceptance_threshold={settings.acceptance_threshold:g} has no rule for trees: leave it out"
        )

    if settings.acceptance_rule == "block":
        raise ValueError("acceptance_rule='block' has no rule for trees: leave it out, or draft chains")

    def choice(path: list[int]) -> int:
        row, before = logits[path[-1] + 1 if path else 0], [x[node] for node in path]
        if settings.sampling.do_sample:
            p = processor.distribution(row, before)
            return sequence.coupling.draw(p, len(sequence.tokens) + len(path))
        return processor.argmax(row, before)

    return follow_choices(x, parents, choice)
