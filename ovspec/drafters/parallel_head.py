"""A head that drafts all of its tokens in one pass: behind the text stand mask tokens, one for each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as SequenceOf

from ovspec.drafters.cached_head import CachedHead
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.joined_states import JoinedStates
from ovspec.drafters.parallel_draft import BlockLogits, parallel_draft
from ovspec.drafters.target_ids import TargetIds
from ovspec.generation.sequence import Sequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner


class ParallelHead(CachedHead):
    """Drafts chains and trees with a head, for several sequences at once.

    Args:
        name, runner, join, prefill_chunk, positions: as of `CachedHead`.
        ids: the target's, of its tokens.
        drafted: tokens that a pass can draft.
    """

    why_no_trees = ""

    def __init__(
        self,
        name: str,
        runner: ModelRunner,
        join: JoinedStates,
        ids: TargetIds,
        drafted: int,
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        super().__init__(name, runner, join, prefill_chunk, positions)
        self._ids, self._drafted = ids, drafted

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """In one pass for all sequences."""
        lengths = self._drafting(sequences, [min(count, self._drafted) for count in counts])
        if not lengths:
            return {}
        try:
            batch = [self._rows(sequences[i], length) for i, length in lengths.items()]
            result = self.runner.forward(batch)
            self.last_duration = result.duration
            self._pass_by(sequences, lengths)
            blocks, begin, passed = list[BlockLogits](), 0, 0
            for (index, length), rows in zip(lengths.items(), batch, strict=True):
                logits = result.logits[begin : begin + length]
                states = result.states[passed : passed + rows.states] if rows.states else None
                blocks.append(BlockLogits(sequences[index], counts[index], logits, states, rows.sampled))
                begin, passed = begin + rows.sampled, passed + rows.states
            proposals = self._continue(blocks)
        finally:
            self._drop_drafts(sequences, lengths)
        return dict(zip(lengths, proposals, strict=True))

    def _continue(self, blocks: SequenceOf[BlockLogits]) -> list[Proposal]:
        """The drafts of sequences, from what the pass has computed."""
        return [
            parallel_draft(block.sequence, block.count, self._ids.spread(block.logits)) for block in blocks
        ]

    @abstractmethod
    def _rows(self, sequence: Sequence, length: int) -> Rows:
        """The next entries, and behind them mask tokens for a draft of so many tokens."""
