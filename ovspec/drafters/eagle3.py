"""`eagle3`: a head of one layer drafts from hidden states of the target (EAGLE-3, arXiv 2503.01840).

Token by token, or all of them in one pass where it was trained for that (P-EAGLE).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.cached_head import CachedHead
from ovspec.drafters.head_fit import check_mask_token, check_states, read_head, share_with_target
from ovspec.drafters.joined_states import JoinedStates
from ovspec.drafters.parallel_head import ParallelHead
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.drafters.target_ids import TargetIds
from ovspec.generation.sequence import Sequence
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import HeadParts, split_head
from ovspec_transforms.graph import find_parameter, nodes_of_type

_FEWEST_LAYERS = 3


def eagle3_boundaries(layers: int) -> tuple[int, ...]:
    """The boundaries that EAGLE-3 reads of a target with so many layers.

    Raises:
        ValueError: the target has too few.
    """
    if layers < _FEWEST_LAYERS:
        raise ValueError(f"an EAGLE-3 head reads three boundaries, the target has {layers} layers only")
    return (2, layers // 2, layers - 3)


def load_eagle3(info: HeadInfo, target: ModelInfo, backends: Backends, prefill_chunk: int) -> CachedHead:
    """Compile the head of a folder for a target.

    Args:
        info: of the head's folder.
        target: of the target's folder, whose embedding and output layer it takes unless it has its own.
        backends: the operations that compute it.
        prefill_chunk: rows per pass while a prompt is read.

    Raises:
        ValueError: it is no EAGLE-3 head, or one for another target.
    """
    parts = split_head(read_head(info))
    boundaries = info.boundaries or eagle3_boundaries(target.num_hidden_layers)
    check_states(info, parts, target, len(boundaries))
    _check_norms(info, parts)
    share_with_target(info, parts, target)
    ids = TargetIds.of(info, parts, target.vocab_size) if info.own_output else TargetIds(target.vocab_size)
    own = ModelInfo.read(info.folder)
    runner = ModelRunner(parts.head, backends=backends)
    join = JoinedStates(parts, backends)
    positions = own.max_position_embeddings
    if info.block is None:
        return RecurrentHead("eagle3", runner, join, ids, prefill_chunk, positions)
    if parts.mask is None:
        raise ValueError(
            f"'{info.folder}' has no mask_hidden, which its config.json asks for; export the checkpoint again"
        )
    check_mask_token(info, target)
    masked = join(parts.mask[np.newaxis])
    return PEagleHead(runner, join, ids, info.block, masked, prefill_chunk, positions)


class PEagleHead(ParallelHead):
    """Drafts all tokens in one pass (P-EAGLE).

    Behind the entries of the text stand entries of mask tokens, with a learnt vector in the place of the
    target's states; each sees those before it, and gives the token behind its own.

    Args:
        block: tokens of a draft and the one before it, and the mask token.
        masked: f32 `[1, size]`, features of states that are not known yet.
        others: as of `ParallelHead`.
    """

    shift = 1

    def __init__(
        self,
        runner: ModelRunner,
        join: JoinedStates,
        ids: TargetIds,
        block: tuple[int, int],
        masked: NDArray[np.float32],
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        super().__init__("eagle3", runner, join, ids, block[0] - 1, prefill_chunk, positions)
        self._mask_token, self._masked = block[1], masked

    def _rows(self, sequence: Sequence, length: int) -> Rows:
        rows = self._entries(sequence, self._known(sequence))
        assert rows.features is not None
        masks = np.full(length - 1, self._mask_token, np.int64)
        return replace(
            rows,
            tokens=np.concatenate([rows.tokens, masks]),
            features=np.concatenate([rows.features, np.repeat(self._masked[np.newaxis], len(masks), 0)]),
            sampled=length,
        )


def _check_norms(info: HeadInfo, parts: HeadParts) -> None:
    """Refuse IR that has not the norms of its config.json: other exporters than ovspec leave them out."""
    assert parts.fc is not None
    readers = find_parameter(parts.head, "hidden_states").output(0).get_target_inputs()
    graph = {
        ("norm_before_fc", "fc_norm"): bool(nodes_of_type(parts.fc, "ReduceMean")),
        ("norm_before_residual",): all(port.get_node().get_type_name() != "Add" for port in readers),
    }
    for names, has in graph.items():
        if has != bool(info.norms & {*names}):
            raise ValueError(
                f"'{info.folder}': openvino_model.xml has {'a' if has else 'no'} norm where config.json says "
                f"{' or '.join(names)}; export the checkpoint with its target: `ovspec export -m ... OUT "
                "--eagle3 CHECKPOINT`"
            )
