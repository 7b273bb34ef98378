"""A runner whose passes are real and whose acceptance follows a trace."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.bench.acceptance_trace import AcceptanceTrace, Confirmations
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence
from ovspec.passes.pass_result import PassResult
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

# Larger than any logit of a model, and finite.
_CERTAIN = np.float32(1e6)


class TracedRunner(ModelRunner):
    """Runs real passes, then changes the logits so that greedy acceptance follows a trace.

    For batches of one sequence. The logits of a pass with one sampled row are not changed.
    """

    _drafts: Iterator[tuple[int, int, int]] | None = None
    _confirmations: Confirmations | None = None
    _pending = 0

    def replay(self, trace: AcceptanceTrace | None, commits: bool) -> None:
        """Start to follow a trace, or stop; with `commits`, dense passes confirm provisional tokens."""
        self._drafts = trace.drafts() if trace else None
        self._confirmations = Confirmations(trace) if trace and commits else None
        self._pending = 0

    def forward(self, batch: SequenceOf[Rows]) -> PassResult:
        """As `ModelRunner.forward`."""
        rows, result = batch[0], super().forward(batch)
        self._trace(result.logits, rows.tokens[-rows.sampled :], rows.parents, rows.is_dense)
        return result

    def _trace(
        self,
        logits: NDArray[np.float32],
        tokens: NDArray[np.int64],
        parents: NDArray[np.int32] | None,
        is_dense: bool,
    ) -> None:
        """Change the logits `[tokens, vocab]` of a last token and its draft as the trace says."""
        if self._drafts is None:
            return
        # A dense pass confirms what sparse ones accepted since the last one; a draft follows.
        drafted, pending = len(logits) - 1, self._pending if is_dense else 0
        path = _path(parents, drafted)
        accepted = self._confirmations.take(pending) if self._confirmations and pending else 0
        if drafted > pending:
            following = min(next(self._drafts)[1], len(path) - 1 - pending)
            accepted += following if accepted == pending else 0
        is_provisional = self._confirmations is not None and not is_dense
        self._pending = self._pending + accepted + 1 if is_provisional else 0
        if drafted < 1:
            return
        logits[path[:accepted], tokens[path[1 : accepted + 1]]] = _CERTAIN
        if accepted < len(path) - 1:
            # No child has this token: those of a tree are consecutive numbers, this path's is the last.
            logits[path[accepted], (tokens[path[accepted + 1]] + 1) % logits.shape[1]] = _CERTAIN


def _path(parents: NDArray[np.int32] | None, drafted: int) -> NDArray[np.int64]:
    """Rows from the last token on along the last children, the path that a trace accepts."""
    if parents is None:
        return np.arange(drafted + 1)
    path = [0]
    while len(children := np.flatnonzero(parents == path[-1])):
        path.append(int(children[-1]))
    return np.array(path)


class TraceDrafter(Drafter):
    """Proposes as many tokens as a trace says, at the cost of a lookup.

    A tree has a path with siblings of its nodes before them, so that what is accepted moves in the cache.
    """

    name = "trace"
    why_no_trees = ""

    def __init__(self, trace: AcceptanceTrace, vocab_size: int) -> None:
        self._drafts = trace.drafts()
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(0)

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        proposed, _, nodes = next(self._drafts)
        return {
            i: self._tree(min(proposed, sequences[i].remaining - 1), min(nodes, count))
            if nodes > proposed
            else Proposal(self._tokens(min(proposed, count)))
            for i, count in enumerate(counts)
        }

    def _tree(self, levels: int, nodes: int) -> Proposal:
        levels, parents, last = min(levels, nodes), list[int](), -1
        for level in range(levels):
            siblings = (nodes - levels + level) // levels
            parents += [last] * (siblings + 1)
            last = len(parents) - 1
        return Proposal(self._tokens(len(parents)), parents=parents)

    def _tokens(self, count: int) -> list[int]:
        first = int(self._rng.integers(self._vocab_size))
        return [(first + place) % self._vocab_size for place in range(count)]
