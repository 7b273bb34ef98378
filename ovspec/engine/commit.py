"""Committed speculation: sparse steps make tokens provisional, dense passes make them final.

Under sampling the dense pass is speculative sampling once more. The sparse verifier's acceptance and its
corrections leave every provisional token distributed by its own p_s, so q = p_s, and what a commit lets
through is distributed by the dense p. When a commit comes depends on the tokens before it only, never on
those that it judges next.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.speculation import Speculation, Step, accept
from ovspec.engine.verifier import Verifier
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.runtime.clock import microseconds
from ovspec.sampling.sampling import Distribution
from ovspec.schedule.schedule import Plan
from ovspec.verify.commit_verify import MAX_INTERVAL
from ovspec.verify.limits import DENSE


class CommittedSpeculation(Speculation):
    """Sparse verification whose tokens a dense pass confirms or corrects.

    Args:
        verifier: runs the target, with a sparse budget.
        drafter: proposes tokens; without one the sparse target decodes alone between commits.
        interval: provisional tokens after which a commit comes; `None` adapts it.
    """

    def __init__(self, verifier: Verifier, drafter: Drafter | None, interval: int | None) -> None:
        super().__init__(verifier, drafter)
        self._interval = interval

    def step(self, sequences: SequenceOf[Sequence], plan: Plan, metrics: RawPerfMetrics) -> Step:
        """A sparse step, and a commit of those sequences for which it is time."""
        step = super().step(sequences, plan, metrics)
        due = [index for index, sequence in enumerate(sequences) if self._is_due(sequence, plan)]
        if due:
            tokens = self._commit([sequences[index] for index in due], step, metrics)
            for index, final in zip(due, tokens, strict=True):
                step.tokens[index] = final
        return step

    def room(self, sequence: Sequence) -> int:
        """As in `Speculation`, and no more than a commit can take."""
        # A commit goes over all provisional tokens in one pass.
        return min(super().room(sequence), MAX_INTERVAL - 1 - len(sequence.provisional))

    def _take(
        self, sequence: Sequence, tokens: list[int], p: list[Distribution | None], dense: bool
    ) -> list[int]:
        if dense and not sequence.provisional:
            return sequence.append(tokens)
        stops = sequence.settings.stop_token_ids
        end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
        sequence.add_provisional(tokens[:end], p[:end])
        return []

    def _is_due(self, sequence: Sequence, plan: Plan) -> bool:
        count = len(sequence.provisional)
        if not count:
            return False
        interval = plan.commit_interval or self._interval or sequence.provisional.interval
        last = sequence.tokens[-1] in sequence.settings.stop_token_ids
        # One more token comes out of the commit itself.
        return count >= interval or last or sequence.remaining <= 1

    def _commit(
        self, sequences: SequenceOf[Sequence], step: Step, metrics: RawPerfMetrics
    ) -> list[list[int]]:
        """One dense pass over the provisional tokens, which rewrites their keys and values."""
        proposals = [Proposal(*sequence.take_back()) for sequence in sequences]
        drafts = [(s, proposal.tokens) for s, proposal in zip(sequences, proposals, strict=True)]
        logits = self.verifier.verify(drafts, [DENSE] * len(drafts), metrics)
        step.commit_duration = self.verifier.last_duration
        started, final = microseconds(), []
        for sequence, proposal, rows in zip(sequences, proposals, logits, strict=True):
            accepted, _ = accept(sequence, proposal, rows)
            count = len(proposal.tokens)
            sequence.provisional.adapt(accepted.n, count)
            step.commit_rows += count
            step.confirmed += accepted.n
            final.append(sequence.append([*proposal.tokens[: accepted.n], accepted.next_token]))
        step.sampling_duration += microseconds() - started
        return final
