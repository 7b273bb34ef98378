"""Verification: one pass of the target over last tokens with their drafts, and over chunks of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter
from ovspec.generation.sequence import Sequence
from ovspec.modes.row_limits import ReadLimits
from ovspec.passes.pass_result import PassResult
from ovspec.passes.pass_stats import PassStats
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner


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
    limits: ReadLimits
    parents: SequenceOf[int] | None = None

    @property
    def rows(self) -> Rows:
        """The rows of the pass: the last token of the sequence, the parent of a tree's roots, comes first."""
        sequence, parents = self.sequence, self.parents
        tokens = np.array([*sequence.tokens[sequence.target.length :], *self.tokens], np.int64)
        tree = None if parents is None else np.array([-1, *(parent + 1 for parent in parents)], np.int32)
        return Rows(sequence.target, tokens, len(self.tokens) + 1, parents=tree, **self.limits.rows)


@dataclass(frozen=True, slots=True)
class Verified:
    """What one pass says of a draft, or of a chunk of a prompt; valid until the next pass.

    Attributes:
        logits: of a draft f32 `[tokens + 1, vocab]`, row i follows its token i; of a chunk, those asked for.
        begin: tokens in the cache before its rows.
        drafted: how many of its rows, the last ones, are a draft.
        states: of its rows, f32 `[rows, sum of hidden sizes]`; `None` where no drafter reads them.
    """

    logits: NDArray[np.float32]
    begin: int
    drafted: int
    states: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """What one pass says of drafts and chunks.

    Attributes:
        parts: of the drafts, and of the chunks behind them.
        result: of the pass.
    """

    parts: list[Verified]
    result: PassResult

    @property
    def stats(self) -> PassStats:
        """Measurements, the drafts' sequences first."""
        return self.result.stats


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
        result = self.target.forward(batch)
        states = result.states if self._reader else None
        parts, sampled, first = list[Verified](), 0, 0
        for rows, begin, draft in zip_longest(batch, begins, drafts):
            logits = result.logits[sampled : sampled + rows.sampled]
            own = None if states is None else states[first : first + len(rows.tokens)]
            parts.append(Verified(logits, begin, len(draft.tokens) if draft else 0, own))
            sampled, first = sampled + rows.sampled, first + len(rows.tokens)
        return Verification(parts, result)

    def show(self, sequence: Sequence, verified: Verified, nodes: Iterable[int]) -> None:
        """Show the drafter what states the tokens have that a pass read and accepted.

        Args:
            sequence: whose rows they are.
            verified: what the pass says of them.
            nodes: accepted tokens of its draft, in their order.
        """
        states = verified.states
        if self._reader is None or states is None:
            return
        before = len(states) - verified.drafted
        kept = [*range(before), *(before + node for node in nodes)]
        self._reader.observe(sequence, verified.begin, states if len(kept) == len(states) else states[kept])

    def keep(self, sequence: Sequence, nodes: SequenceOf[int]) -> None:
        """Keep only the accepted path of the last pass's tree in the cache, after the sequence's tokens."""
        past = len(sequence.tokens) - 1
        self.target.compact(sequence.target, past, [0, *(node + 1 for node in nodes)])
