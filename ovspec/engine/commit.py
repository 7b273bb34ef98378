"""Committed speculation: sparse steps make tokens provisional, dense passes make them final.

Under sampling the dense pass applies speculative sampling again. Acceptance and correction by the sparse
verifier distribute every provisional token by its p_s. The dense pass therefore uses q = p_s, and its output
follows the dense p. The decision to commit depends only on earlier tokens, never on those that the commit
verifies next; otherwise the output would be biased.
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
    """Sparse verification; a dense pass confirms or corrects its tokens.

    Args:
        verifier: runs the target, with a sparse budget.
        drafter: proposes tokens; without one, the target decodes sparsely between commits.
        interval: number of provisional tokens that triggers a commit; `None` adapts it.
    """

    def __init__(self, verifier: Verifier, drafter: Drafter | None, interval: int | None) -> None:
        super().__init__(verifier, drafter)
        self._interval = interval

    def step(self, sequences: SequenceOf[Sequence], plan: Plan, metrics: RawPerfMetrics) -> Step:
        """A sparse step, then a commit of the sequences that are due."""
        step = super().step(sequences, plan, metrics)
        due = [index for index, sequence in enumerate(sequences) if self._is_due(sequence, plan)]
        if due:
            tokens = self._commit([sequences[index] for index in due], step, metrics)
            for index, final in zip(due, tokens, strict=True):
                step.tokens[index] = final
        return step

    def room(self, sequence: Sequence) -> int:
        """As in `Speculation`, but at most what one commit pass can verify."""
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
        # The commit itself yields one more token.
        return count >= interval or last or sequence.remaining <= 1

    def _commit(
        self, sequences: SequenceOf[Sequence], step: Step, metrics: RawPerfMetrics
    ) -> list[list[int]]:
        """Verify the provisional tokens in one dense pass, which rewrites their keys and values."""
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
