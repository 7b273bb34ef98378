"""`dflash`: a head drafts a block of tokens in one pass (DFlash, arXiv 2602.06036).

Entry i of the head's cache is made of the target's states at position i. A block begins with the last token
of the text, whose states are not known yet, and goes on with mask tokens, which become the draft's. With a
window, all rows of a block see the same entries, the last ones before it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.drafters.corrected_drafts import CorrectedDrafts
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.head_fit import (
    check_mask_token,
    check_states,
    read_head,
    share_with_target,
)
from ovspec.drafters.joined_states import JoinedStates
from ovspec.drafters.parallel_draft import BlockLogits
from ovspec.drafters.parallel_head import ParallelHead
from ovspec.drafters.target_ids import TargetIds
from ovspec.generation.sequence import Sequence
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import RowSight, split_head
from ovspec_transforms.graph import nodes_of_type


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
    check_mask_token(info, target)
    # With the exports of all heads; a pipeline without this head starts sooner.
    from ovspec_models.heads import open_correction, open_dflash

    model = open_dflash(read_head(info), info.folder)
    correction = open_correction(model, info.correction)
    parts = split_head(model)
    check_states(info, parts, target, len(info.boundaries or ()))
    share_with_target(info, parts, target)
    ids = TargetIds.of(info, parts, target.vocab_size) if info.own_output else TargetIds(target.vocab_size)
    runner = ModelRunner(parts.head, backends=replace(backends, sights=_sights(info, parts.head)))
    join = JoinedStates(parts, backends)
    positions = ModelInfo.read(info.folder).max_position_embeddings
    block = Block(size, mask_token, info.samples_anchor, correction is not None and correction.whole)
    corrected = CorrectedDrafts(correction, backends, ids) if correction else None
    return DFlashDrafter(runner, join, ids, block, prefill_chunk, positions, corrected)


def _sights(info: HeadInfo, head: ov.Model) -> tuple[RowSight, ...]:
    """What rows see in each layer."""
    layers = len(nodes_of_type(head, "ScaledDotProductAttention"))
    if len(info.layer_windows) != layers:
        raise ValueError(
            f"'{info.folder}': openvino_model.xml has {layers} layers, num_hidden_layers of config.json is "
            f"{len(info.layer_windows)}; export the head again"
        )
    return tuple(RowSight(window, window > 0 and info.windows_causal) for window in info.layer_windows)


@dataclass(frozen=True, slots=True)
class Block:
    """What a head drafts in a pass.

    Attributes:
        size: its tokens, the one before the draft counted.
        mask_token: id that stands for a token to come.
        samples_anchor: whether each token gives the one behind it, the first of the block too; else each mask
            token gives the one that it stands for.
        whole: whether a pass computes all of them, whatever is drafted.
    """

    size: int
    mask_token: int
    samples_anchor: bool = False
    whole: bool = False

    @property
    def drafted(self) -> int:
        """Tokens that a pass can draft."""
        return self.size if self.samples_anchor else self.size - 1

    def tokens(self, last: int, drafted: int) -> NDArray[np.int64]:
        """Those of a block behind the last token of a text that drafts so many."""
        count = self.size if self.whole else self.size - self.drafted + drafted
        found = np.full(count, self.mask_token, np.int64)
        found[0] = last
        return found


class DFlashDrafter(ParallelHead):
    """Drafts blocks, whose tokens see each other.

    Args:
        block: that it drafts.
        corrected: drafts from the logits of a block, where a correction follows them.
        others: as of `ParallelHead`.
    """

    shift, block = 0, 0

    def __init__(
        self,
        runner: ModelRunner,
        join: JoinedStates,
        ids: TargetIds,
        block: Block,
        prefill_chunk: int,
        positions: int | None = None,
        corrected: CorrectedDrafts | None = None,
    ) -> None:
        super().__init__("dflash", runner, join, ids, block.drafted, prefill_chunk, positions)
        self._block, self._corrected = block, corrected

    def _continue(self, blocks: SequenceOf[BlockLogits]) -> list[Proposal]:
        if self._corrected is None:
            return super()._continue(blocks)
        drafts = self._corrected.draft(blocks)
        self.last_duration += self._corrected.duration
        return drafts

    def _rows(self, sequence: Sequence, length: int) -> Rows:
        """The next entries, and behind them a block that drafts so many tokens."""
        rows = self._entries(sequence, self._known(sequence))
        assert rows.features is not None
        block = self._block.tokens(sequence.tokens[-1], length)
        unknown = np.zeros((len(block), *rows.features.shape[1:]), np.float32)
        return replace(
            rows,
            tokens=np.concatenate([rows.tokens, block]),
            features=np.concatenate([rows.features, unknown]),
            sampled=len(block) - self._block.size + self._block.drafted,
            block=len(block),
            states=len(block) if self._corrected else 0,
        )
