"""Verification: one pass of the target over last tokens with their drafts, and over chunks of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter
from ovspec.generation.sequence import Sequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.pass_result import PassResult
from ovspec.runtime.pass_stats import PassStats
from ovspec.runtime.tables import Rows
from ovspec.verify.limits import Limits
from ovspec_models.sparse_verify import SparseVerify


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft to verify.

    Attributes:
        sequence: that it follows. Its last token (in a chain, the last few) is not in the cache yet.
        tokens: of the draft.
        limits: what its rows may read, from `Verifier.limits`.
        parents: of each token in a tree; `None`: a chain.
    """

    sequence: Sequence
    tokens: SequenceOf[int]
    limits: Limits
    parents: SequenceOf[int] | None = None

    @property
    def rows(self) -> Rows:
        """The rows of the pass: the last token of the sequence, the parent of a tree's roots, comes first."""
        sequence, parents = self.sequence, self.parents
        tokens = np.array([*sequence.tokens[sequence.target.length :], *self.tokens], np.int64)
        tree = None if parents is None else np.array([-1, *(parent + 1 for parent in parents)], np.int32)
        return Rows(sequence.target, tokens, len(self.tokens) + 1, parents=tree, **self.limits.rows)


@dataclass(frozen=True, slots=True)
class Verification:
    """What one pass says of drafts and chunks; valid until the next pass.

    Attributes:
        logits: of every draft `[tokens + 1, vocab]`, row i follows its token i; of every chunk behind them.
        result: of the pass.
        begins: tokens in the cache before the rows of each, where a drafter reads states.
        counts: rows of each, and those that are a draft.
        reader: that is shown states, if there is one.
    """

    logits: list[NDArray[np.float32]]
    result: PassResult
    begins: list[int]
    counts: list[tuple[int, int]]
    reader: Drafter | None

    @property
    def stats(self) -> PassStats:
        """Measurements, the drafts' sequences first."""
        return self.result.stats

    def show(self, index: int, sequence: Sequence, nodes: Iterable[int]) -> None:
        """Show the drafter what states the tokens have that the pass read and accepted.

        Args:
            index: of the sequence among those of the pass, chunks after drafts.
            sequence: that one.
            nodes: accepted tokens of its draft, in their order.
        """
        if self.reader is None:
            return
        first, (rows, drafted) = sum(count for count, _ in self.counts[:index]), self.counts[index]
        states, before = self.result.states[first : first + rows], rows - drafted
        kept = [*range(before), *(before + node for node in nodes)]
        self.reader.observe(sequence, self.begins[index], states if len(kept) == rows else states[kept])


class Verifier:
    """Runs drafts through the target.

    Args:
        target: the model whose output is generated.
        drafter: it is shown hidden states if it reads them.
    """

    def __init__(self, target: ModelRunner, drafter: Drafter | None = None) -> None:
        self.target = target
        self._reader = drafter if drafter is not None and drafter.reads_states else None

    def verify(self, drafts: SequenceOf[Draft], chunks: SequenceOf[Rows] = ()) -> Verification:
        """Run one pass over drafts, and over rows of prompts."""
        batch = [*(draft.rows for draft in drafts), *chunks]
        if self._reader:
            batch = [replace(rows, states=len(rows.tokens)) for rows in batch]
        begins = [rows.sequence.length for rows in batch]
        drafted = [*(len(draft.tokens) for draft in drafts), *[0] * len(chunks)]
        counts = [(len(rows.tokens), count) for rows, count in zip(batch, drafted, strict=True)]
        result, logits, end = self.target.forward(batch), list[NDArray[np.float32]](), 0
        for rows in batch:
            logits.append(result.logits[end : end + rows.sampled])
            end += rows.sampled
        return Verification(logits, result, begins, counts, self._reader)

    def keep(self, sequence: Sequence, nodes: SequenceOf[int]) -> None:
        """Keep only the accepted path of the last pass's tree in the cache, after the sequence's tokens."""
        past = len(sequence.tokens) - 1
        self.target.compact(sequence.target, past, [0, *(node + 1 for node in nodes)])

    def limits(self, sparse: SparseVerify | None, context: int, scale: float | None = None) -> Limits:
        """What a pass may read.

        Args:
            sparse: the settings; `None` makes the pass dense.
            context: tokens that its last row sees.
            scale: multiple of attention's configured budget, `math.inf` for a dense pass.
        """
        return Limits.of(sparse, context, self.target.block_size, 1.0 if scale is None else scale)
