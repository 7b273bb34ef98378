"""`dflash`: a head drafts a block of tokens in one pass (DFlash, arXiv 2602.06036).

Entry i of the head's cache is made of the target's states at position i. A block begins with the last token
of the text, whose states are not known yet, and goes on with mask tokens, which become the draft's.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ovspec.devices.devices import openvino_core
from ovspec.drafters.cached_head import CachedHead
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.head_fit import check_size, check_states, read_head, share_with_target
from ovspec.drafters.joined_states import JoinedStates
from ovspec.drafters.parallel_draft import parallel_draft
from ovspec.drafters.target_ids import TargetIds
from ovspec.generation.sequence import Sequence
from ovspec.graphs.compile import read_model
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import share_embedding, split_head


def load_dflash(info: HeadInfo, target: ModelInfo, backends: Backends, prefill_chunk: int) -> DFlashDrafter:
    """Compile the head of a folder for a target.

    Args:
        info: of the head's folder.
        target: of the target's folder, whose embedding and output layer it takes.
        backends: the operations that compute it.
        prefill_chunk: rows per pass while a prompt is read.

    Raises:
        ValueError: a head for another target, or stock attention.
    """
    if backends.attention.backend != "native":
        raise ValueError(
            f"'{info.folder}' is a DFlash head, whose blocks attention='stock' can't read; use "
            "attention='native', on a CPU"
        )
    assert info.block is not None
    size, mask_token = info.block
    if mask_token >= target.vocab_size:
        raise ValueError(
            f"'{info.folder}' is a head for another target: its mask_token_id is {mask_token}, the target's "
            f"tokens are 0 to {target.vocab_size - 1}"
        )
    # With the exports of all heads; a pipeline without this head starts sooner.
    from ovspec_models.heads import open_dflash

    parts = split_head(open_dflash(read_head(info), info.folder))
    check_states(info, parts, target, len(info.boundaries or ()))
    if parts.offsets is None:
        share_with_target(info, parts, target)
        ids = TargetIds(target.vocab_size)
    else:
        embedded = share_embedding(parts.head, read_model(openvino_core(), target.folder))
        check_size(info, parts, "embedding", embedded)
        ids = TargetIds.of(info, parts, target.vocab_size)
    runner = ModelRunner(parts.head, backends=backends)
    join = JoinedStates(parts, backends)
    positions = ModelInfo.read(info.folder).max_position_embeddings
    block = Block(size, mask_token, info.samples_anchor)
    return DFlashDrafter(runner, join, ids, block, prefill_chunk, positions)


@dataclass(frozen=True, slots=True)
class Block:
    """What a head drafts in a pass.

    Attributes:
        size: its tokens, the one before the draft counted.
        mask_token: id that stands for a token to come.
        samples_anchor: whether each token gives the one behind it, the first of the block too; else each mask
            token gives the one that it stands for.
    """

    size: int
    mask_token: int
    samples_anchor: bool = False

    @property
    def drafted(self) -> int:
        """Tokens that a pass can draft."""
        return self.size if self.samples_anchor else self.size - 1

    def tokens(self, last: int, drafted: int) -> NDArray[np.int64]:
        """Those of a block behind the last token of a text that drafts so many."""
        found = np.full(drafted if self.samples_anchor else drafted + 1, self.mask_token, np.int64)
        found[0] = last
        return found


class DFlashDrafter(CachedHead):
    """Drafts chains and trees with a head, for several sequences at once.

    Args:
        runner, join, prefill_chunk, positions: as of `CachedHead`.
        ids: the target's, of its tokens.
        block: that it drafts.
    """

    shift, block = 0, 0
    why_no_trees = ""

    def __init__(
        self,
        runner: ModelRunner,
        join: JoinedStates,
        ids: TargetIds,
        block: Block,
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        super().__init__("dflash", runner, join, prefill_chunk, positions)
        self._ids, self._drafts = ids, block

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """In one pass for all sequences."""
        lengths = self._drafting(sequences, [min(count, self._drafts.drafted) for count in counts])
        proposals: dict[int, Proposal] = {}
        if not lengths:
            return proposals
        try:
            result = self.runner.forward([self._block(sequences[i], length) for i, length in lengths.items()])
            self.last_duration = result.duration
            self._pass_by(sequences, lengths)
            logits, begin = self._ids.spread(result.logits), 0
            for index, length in lengths.items():
                places = logits[begin : begin + length]
                proposals[index] = parallel_draft(sequences[index], counts[index], places)
                begin += length
        finally:
            self._drop_drafts(sequences, lengths)
        return proposals

    def _block(self, sequence: Sequence, length: int) -> Rows:
        """The next entries, and behind them a block that drafts so many tokens."""
        rows = self._entries(sequence, self._known(sequence))
        assert rows.features is not None
        block = self._drafts.tokens(sequence.tokens[-1], length)
        unknown = np.zeros((len(block), *rows.features.shape[1:]), np.float32)
        return replace(
            rows,
            tokens=np.concatenate([rows.tokens, block]),
            features=np.concatenate([rows.features, unknown]),
            sampled=length,
            block=len(block),
        )
