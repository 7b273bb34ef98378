"""`mtp`: the module that a target was trained with drafts (multi-token prediction, arXiv 2412.19437)."""

from __future__ import annotations

from ovspec.drafters.head_fit import check_states, read_head, share_with_target
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.drafters.target_ids import TargetIds
from ovspec.operations.backends import Backends
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import whole_head


def load_mtp(info: HeadInfo, target: ModelInfo, backends: Backends, prefill_chunk: int) -> RecurrentHead:
    """Compile the module of a folder for a target.

    Args:
        info: of the module's folder.
        target: of the target's folder, whose embedding and output layer it takes.
        backends: the operations that compute it.
        prefill_chunk: rows per pass while a prompt is read.

    Raises:
        ValueError: a module of another target.
    """
    parts = whole_head(read_head(info))
    check_states(info, parts, target, 1)
    share_with_target(info, parts, target)
    own = ModelInfo.read(info.folder)
    ids = TargetIds(target.vocab_size)
    runner = ModelRunner(parts.head, backends=backends)
    positions = own.max_position_embeddings
    return RecurrentHead("mtp", runner, None, ids, prefill_chunk, positions)
