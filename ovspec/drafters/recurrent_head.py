"""Drafts of a head that takes its own last state for the target's, a token at a time.

Entry i of the head's cache pairs the target's state at position i with the embedding of token i + 1. Its
logits follow token i + 1, and its own last state stands for the target's in entry i + 1 of a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.cached_head import CachedHead
from ovspec.drafters.draft_tree import DraftTree
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import draw
from ovspec.drafters.joined_states import JoinedStates
from ovspec.drafters.target_ids import TargetIds
from ovspec.generation.sequence import Sequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner


class RecurrentHead(CachedHead):
    """Drafts chains and trees with a head, for several sequences at once.

    Args:
        name, runner, join, prefill_chunk, positions: as of `CachedHead`.
        ids: the target's, of its tokens.
    """

    shift = 1

    def __init__(
        self,
        name: str,
        runner: ModelRunner,
        join: JoinedStates | None,
        ids: TargetIds,
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        super().__init__(name, runner, join, prefill_chunk, positions)
        self._ids = ids
        self.why_no_trees = runner.why_no_tree_mask

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        limits = self._drafting(sequences, counts)
        proposals = {index: Proposal() for index in limits}
        trees = {
            index: DraftTree(sequences[index], counts[index], limit)
            for index, limit in limits.items()
            if sequences[index].settings.branching_factor > 1
        }
        chains = [index for index in limits if index not in trees]
        try:
            if trees:
                self._draft_trees(sequences, trees)
            for index, tree in trees.items():
                proposals[index] = tree.proposal()
            batch = self._first_rows(sequences, chains)
            drafting = chains
            while drafting:
                logits, features = self._forward(batch)
                if drafting is chains:
                    self._pass_by(sequences, chains)
                still, batch = [], []
                for index, row, feature in zip(drafting, logits, features, strict=True):
                    sequence, proposal = sequences[index], proposals[index]
                    if draw(sequence, proposal, row) and len(proposal.tokens) < limits[index]:
                        still.append(index)
                        token = np.array(proposal.tokens[-1:], np.int64)
                        batch.append(Rows(sequence.draft, token, states=1, features=feature[None, None]))
                drafting = still
        finally:
            self._drop_drafts(sequences, limits)
        return proposals

    def _draft_trees(self, sequences: SequenceOf[Sequence], trees: Mapping[int, DraftTree]) -> None:
        """Grow trees: after the true entries, each pass has all nodes so far as rows."""
        growing = list(trees)
        logits, states = self._forward(self._first_rows(sequences, growing))
        self._pass_by(sequences, growing)
        features: dict[int, list[NDArray[np.float32]]] = {index: [] for index in growing}
        while growing:
            ends, still, batch = np.cumsum([len(trees[index].frontier) for index in growing]), [], []
            for index, end in zip(growing, ends.tolist(), strict=True):
                sequence, tree, before = sequences[index], trees[index], trees[index].frontier
                rows = slice(end - len(before), end)
                own = dict(zip(before, states[rows], strict=True))
                if tree.grow(logits[rows]):
                    still.append(index)
                    features[index] += [own[tree.parents[node]] for node in tree.frontier]
                    tokens, parents = tree.rows
                    count, joined = len(tree.frontier), np.stack(features[index])[:, np.newaxis]
                    sequence.draft.rollback(len(sequence.tokens) - 1)
                    batch.append(
                        Rows(sequence.draft, tokens, count, parents=parents, states=count, features=joined)
                    )
            growing = still
            if growing:
                logits, states = self._forward(batch)

    def _forward(self, batch: SequenceOf[Rows]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits over the target's vocabulary and own states of the sampled rows."""
        result = self.runner.forward(batch)
        self.last_duration += result.duration
        return self._ids.spread(result.logits), np.array(result.states, np.float32)

    def _first_rows(self, sequences: SequenceOf[Sequence], indices: SequenceOf[int]) -> list[Rows]:
        """The true entries that a draft begins with."""
        return [
            self._entries(sequences[index], self._known(sequences[index]), returned=1) for index in indices
        ]
