"""`assistant`: a smaller model drafts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.draft_tree import DraftTree, depth_of
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.drawing import draw, warn_of_logits
from ovspec.generation.sequence import Sequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.warm_up import warm_up
from ovspec.sampling.tree_acceptance import ROOT
from ovspec_models.folder.sparse_verify import SparseVerify


@dataclass(frozen=True, slots=True)
class _TreeRows:
    """Rows of a tree that were the last ones in a cache.

    Attributes:
        begin: tokens before them.
        tokens: i64 `[rows]`.
        parents: i32 `[rows]`, the row that each follows, `ROOT` for one that follows the tokens before.
    """

    begin: int
    tokens: NDArray[np.int64]
    parents: NDArray[np.int32]

    def path(self, tokens: SequenceOf[int]) -> list[int]:
        """The rows that these tokens took, as far as they go."""
        rows: list[int] = []
        for token in tokens:
            last = rows[-1] if rows else ROOT
            found = np.flatnonzero((self.parents == last) & (self.tokens == token))
            if not len(found):
                break
            rows.append(int(found[0]))
        return rows


def _length(sequence: Sequence) -> int:
    """Tokens of a sequence, without those that stand for pictures: these the draft model does not read."""
    return len(sequence.tokens) - sequence.unseen


class AssistantDrafter(Drafter):
    """Drafts with an assistant model, for several sequences at once.

    Args:
        runner: the draft model.
        vocab_size: of the target. If the two models padded their vocabularies to different sizes, ids that
            only one of them has are not used.
        prefill_chunk: rows per pass while a prompt is read.
        positions: context length of the draft model; beyond it nothing is proposed.
        known: the draft model has an embedding of ids below it; behind others nothing is proposed. `None`: of
            all of the target's.
        sparse: budget of the draft model's own attention, whose graph must support selection; `None`: dense.
    """

    name = "assistant"

    def __init__(
        self,
        runner: ModelRunner,
        vocab_size: int,
        prefill_chunk: int,
        positions: int | None = None,
        sparse: SparseVerify | None = None,
        known: int | None = None,
    ) -> None:
        self.runner = runner
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk
        self._positions = math.inf if positions is None else positions
        self.sparse = sparse
        self._known = vocab_size if known is None else known
        self.why_no_trees = runner.why_no_tree_mask
        self._keeps_paths = not runner.why_no_trees

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """As many tokens as asked, within the positions of the draft model."""
        for sequence in sequences:
            self._keep_path(sequence)
        lengths = [
            min(count, depth_of(sequence), self._positions - _length(sequence))
            for sequence, count in zip(sequences, counts, strict=True)
        ]
        # Beside others a prompt is read in parts, so that these do not wait for it.
        most = None if len(sequences) == 1 else self._prefill_chunk
        drafting = [
            index
            for index, length in enumerate(lengths)
            if length > 0 and self._can_read(sequences[index]) and self._catch_up(sequences[index], most)
        ]
        proposals = {index: Proposal() for index in drafting}
        trees = {
            index: DraftTree(sequences[index], counts[index], int(lengths[index]))
            for index in drafting
            if sequences[index].settings.branching_factor > 1
        }
        self._draft_trees(sequences, trees)
        for index, tree in trees.items():
            proposals[index] = tree.proposal()
        drafting = [index for index in drafting if index not in trees]
        for index in drafting:
            sequences[index].draft.keep_states(sequences[index].draft.length)
        at_once = [index for index in drafting if self._drafts_at_once(sequences[index])]
        self._draft_at_once([(sequences[i], int(lengths[i]), proposals[i]) for i in at_once])
        drafting = [index for index in drafting if index not in at_once]
        while drafting:
            logits = self._forward([(sequences[index], proposals[index].tokens) for index in drafting])
            still = []
            for index, row in zip(drafting, logits, strict=True):
                confident = draw(sequences[index], proposals[index], row)
                if confident and len(proposals[index].tokens) < lengths[index]:
                    still.append(index)
            drafting = still
        return proposals

    def unread(self, sequences: SequenceOf[Sequence]) -> int:
        """Uncached tokens that need passes of their own before the first drafting pass."""
        behind = [s for s in sequences if self.name not in s.draft_states]
        return sum(max(0, _length(sequence) - sequence.draft.length - 2) for sequence in behind)

    def limit_cache(self, cached_bytes: int) -> None:
        """Limit what ended sequences leave in the draft model's cache."""
        self.runner.limit_cache(None, cached_bytes)

    def warm_up(self, rows: int) -> None:
        """Compute the draft model's largest pass."""
        warm_up(self.runner, rows)

    def begin(self, sequence: Sequence) -> None:
        """Begin with what the draft model's cache has of the sequence."""
        visual = sequence.target.visual
        sequence.unseen = 0 if visual is None else len(visual.places)
        if not sequence.draft.length:
            self.runner.share(sequence.draft, sequence.text())

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of the sequence in the draft model's cache."""
        if self.sparse is None:
            self.runner.publish(sequence.draft, sequence.text())
        self.runner.release(sequence.draft)
        sequence.draft_states.pop(self.name, None)

    def _drafts_at_once(self, sequence: Sequence) -> bool:
        """Whether the draft model can choose a sequence's tokens by itself, as its logits alone decide.

        A token that is not probable enough ends a draft, so that the next one is not computed. Lenient
        acceptance and block verification need the distributions that tokens were drawn from.
        """
        settings = sequence.settings
        whole = settings.assistant_confidence_threshold == 0.0 and sequence.processor.leaves_logits
        coupled = settings.acceptance_rule == "coupled" and settings.acceptance_threshold == 1.0
        return self.runner.drafts and whole and (coupled or not settings.sampling.do_sample)

    def _draft_at_once(self, drafts: SequenceOf[tuple[Sequence, int, Proposal]]) -> None:
        """Draft so many tokens of each sequence in one pass."""
        if not drafts:
            return
        drafts = sorted(drafts, key=lambda draft: -draft[1])
        result = self.runner.forward([self._rows(sequence, [], count) for sequence, count, _ in drafts])
        self.last_duration += result.duration
        for (_, count, proposal), tokens in zip(drafts, result.drafts.T.tolist(), strict=True):
            known = tokens.index(-1) if -1 in tokens else count
            if known < count:
                warn_of_logits("logits of the draft model hold NaN, or none is finite")
            proposal.tokens += tokens[:known]

    def _draft_trees(self, sequences: SequenceOf[Sequence], trees: Mapping[int, DraftTree]) -> None:
        """Grow trees: after the context, each pass has all nodes so far as rows, the last ones sampled.

        The rows leave the cache again; those of the path that is accepted come back in the next round.
        """
        growing = list(trees)
        logits = self._forward([(sequences[index], []) for index in growing]) if growing else None
        while logits is not None:
            ends = np.cumsum([len(trees[index].frontier) for index in growing])
            parts = np.split(logits, ends[:-1])
            growing = [index for index, part in zip(growing, parts, strict=True) if trees[index].grow(part)]
            logits = self._forward_trees(sequences, trees, growing) if growing else None

    def _forward_trees(
        self, sequences: SequenceOf[Sequence], trees: Mapping[int, DraftTree], growing: SequenceOf[int]
    ) -> NDArray[np.float32]:
        batch = []
        for index in growing:
            sequence, (tokens, parents) = sequences[index], trees[index].rows
            budget = self._budget(_length(sequence))
            batch.append(
                Rows(sequence.draft, tokens, len(trees[index].frontier), budget=budget, parents=parents)
            )
        logits = self._logits(batch)
        for index in growing:
            sequence = sequences[index]
            begin = _length(sequence)
            sequence.draft.rollback(begin)
            if self._keeps_paths:
                sequence.draft_states[self.name] = _TreeRows(begin, *trees[index].rows)
        return logits

    def _keep_path(self, sequence: Sequence) -> None:
        """Bring back what the cache has of the accepted path of the last tree."""
        drafted: _TreeRows | None = sequence.draft_states.pop(self.name, None)
        if drafted is None or sequence.draft.length != drafted.begin:
            return
        if path := drafted.path(sequence.text(drafted.begin)[:-1]):
            sequence.draft.length += len(drafted.tokens)
            self.runner.compact(sequence.draft, drafted.begin, path)

    def _can_read(self, sequence: Sequence) -> bool:
        """Whether the draft model knows all tokens that it has not read of a sequence."""
        if self._known >= self._vocab_size:
            return True
        return max(sequence.text(sequence.draft.length), default=0) < self._known

    def _catch_up(self, sequence: Sequence, most: int | None) -> bool:
        """Compute uncached tokens but the last, which the first drafting pass takes; whether none are left.

        Args:
            sequence: whose draft cache is behind.
            most: how many of them; `None`: all.
        """
        behind = _length(sequence) - 1 - sequence.draft.length
        if behind > 1:
            missing = np.array(sequence.text(sequence.draft.length)[:-1], np.int64)
            read = self.runner.prefill(sequence.draft, missing[:most], self._prefill_chunk)
            self.last_duration += read.duration
        return most is None or behind <= most

    def _forward(self, drafts: SequenceOf[tuple[Sequence, list[int]]]) -> NDArray[np.float32]:
        return self._logits([self._rows(sequence, drafted) for sequence, drafted in drafts])

    def _rows(self, sequence: Sequence, drafted: list[int], drafts: int = 0) -> Rows:
        """What the draft model has not read of a sequence and its draft so far, to draft so many tokens."""
        context = sequence.text(sequence.draft.length)
        done = max(0, sequence.draft.length - _length(sequence))
        tokens = np.array(context + drafted[done:], np.int64)
        sampling, budget = sequence.settings.sampling, self._budget(_length(sequence))
        samples = drafts > 0 and sampling.do_sample
        return Rows(
            sequence.draft,
            tokens,
            budget=budget,
            drafts=drafts,
            vocab_size=self._vocab_size,
            sampling=sampling if samples else None,
            key=sequence.coupling.key if samples else 0,
            unseen=sequence.unseen,
        )

    def _logits(self, batch: SequenceOf[Rows]) -> NDArray[np.float32]:
        result = self.runner.forward(batch)
        self.last_duration += result.duration
        logits = result.logits
        missing = self._vocab_size - logits.shape[1]
        if missing > 0:
            return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
        return logits[:, : self._vocab_size]

    def _budget(self, context: int) -> int:
        return -1 if self.sparse is None else self.sparse.budget_blocks(context, self.runner.block_size)
