"""One step of speculative decoding: draft, verify, accept, roll back."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.verifier import Verifier
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.runtime.clock import microseconds
from ovspec.sampling.acceptance import Accepted, greedy_accept, lenient_accept, speculative_sample
from ovspec.sampling.sampling import Distribution
from ovspec.sampling.tree_acceptance import AcceptedPath, depth, follow_choices, sample_path
from ovspec.schedule.schedule import Plan
from ovspec.verify.limits import DENSE


@dataclass(slots=True)
class Step:
    """Result of one step.

    Attributes:
        tokens: per sequence, its new final tokens.
        proposed: tokens that were drafted for each sequence.
        depths: tokens on the longest path of each draft; for a chain, all of its tokens.
        accepted: number of draft tokens that verification accepted, per sequence.
        draft_duration: time of the drafting round in microseconds, like all durations.
        draft_model_duration: the part of it spent inside a model.
        verify_duration: of the verification pass.
        commit_duration: of the dense pass over provisional tokens; 0 without one.
        commit_rows: provisional tokens that the commit verified.
        confirmed: provisional tokens that the commit kept.
        sampling_duration: of acceptance.
    """

    tokens: list[list[int]] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_duration: float = 0.0
    draft_model_duration: float = 0.0
    verify_duration: float = 0.0
    commit_duration: float = 0.0
    commit_rows: int = 0
    confirmed: int = 0
    sampling_duration: float = 0.0


class Speculation:
    """Verifies drafts in one pass; accepted tokens are final.

    Args:
        verifier: runs the target.
        drafter: proposes tokens; without one every step is plain decoding.
    """

    def __init__(self, verifier: Verifier, drafter: Drafter | None) -> None:
        self.verifier = verifier
        self.drafter = drafter

    def step(self, sequences: SequenceOf[Sequence], plan: Plan, metrics: RawPerfMetrics) -> Step:
        """Advance every sequence. Between steps the cache holds all tokens but the last of each sequence."""
        step = Step()
        proposals = self._draft(sequences, plan, step)
        limits = [
            self.verifier.limits(len(sequence.tokens) + len(proposal.tokens), plan.budget_scale)
            for sequence, proposal in zip(sequences, proposals, strict=True)
        ]
        drafts = [(s, proposal.tokens) for s, proposal in zip(sequences, proposals, strict=True)]
        trees = [proposal.parents for proposal in proposals]
        logits = self.verifier.verify(drafts, limits, metrics, trees)
        step.verify_duration = self.verifier.last_duration
        started = microseconds()
        for sequence, proposal, rows, limit in zip(sequences, proposals, logits, limits, strict=True):
            tokens, p = self._accept(sequence, proposal, rows)
            step.proposed.append(len(proposal.tokens))
            step.depths.append(len(proposal.tokens) if proposal.parents is None else depth(proposal.parents))
            step.accepted.append(len(tokens) - 1)
            step.tokens.append(self._take(sequence, tokens, p, limit == DENSE))
        step.sampling_duration = microseconds() - started
        return step

    def _draft(self, sequences: SequenceOf[Sequence], plan: Plan, step: Step) -> list[Proposal]:
        counts = [min(plan.num_assistant_tokens, self.room(sequence)) for sequence in sequences]
        if self.drafter is None or max(counts) <= 0:
            return [Proposal() for _ in sequences]
        started = microseconds()
        proposals = self.drafter.propose(sequences, [max(count, 0) for count in counts])
        step.draft_duration = microseconds() - started
        step.draft_model_duration = self.drafter.last_duration
        return proposals

    def room(self, sequence: Sequence) -> int:
        """Largest useful draft; the pass itself yields one more token."""
        long_rope = self.verifier.target.long_rope
        room = long_rope.room(len(sequence.tokens)) if long_rope else None
        return sequence.remaining - 1 if room is None else min(sequence.remaining - 1, room)

    def _accept(
        self, sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]
    ) -> tuple[list[int], list[Distribution | None]]:
        """The tokens that verification yields, with the distribution of each."""
        if proposal.parents is None:
            accepted, p = accept(sequence, proposal, logits)
            return [*proposal.tokens[: accepted.n], accepted.next_token], p
        path, p = accept_tree(sequence, proposal, proposal.parents, logits)
        self.verifier.keep(sequence, path.nodes)
        return [*(proposal.tokens[node] for node in path.nodes), path.next_token], p

    def _take(
        self, sequence: Sequence, tokens: list[int], p: list[Distribution | None], dense: bool
    ) -> list[int]:
        """Append accepted tokens to the sequence; return those that are final."""
        return sequence.append(tokens)


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
