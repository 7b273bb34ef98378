"""The draft model of a pipeline, compiled as its target is."""

from __future__ import annotations

from collections.abc import Mapping

from ovspec.attention_config import Attention, AttentionConfig
from ovspec.draft_model import DraftModel
from ovspec.drafters import AssistantDrafter
from ovspec.expert_budgets import ExpertConfig
from ovspec.linear_backend import LinearBackend
from ovspec.model_runner import ModelRunner
from ovspec.routing import sparse_attention
from ovspec.verify_mode import VerifyMode, attention_part
from ovspec_models import ModelInfo


def load_assistant(
    draft: DraftModel,
    target: ModelInfo,
    device: str,
    attention: Attention,
    verify: VerifyMode,
    properties: Mapping[str, object],
    prefill_chunk: int,
    linear: LinearBackend | None = None,
) -> AssistantDrafter:
    """Compile the draft model; its attention reads as much as the target's may.

    Args:
        draft: as the user named it.
        target: the model that it drafts for.
        device: of the target.
        attention: of the target.
        verify: how the target verifies.
        properties: of the target.
        prefill_chunk: rows per pass while a prompt is read.
        linear: of the target; "native" where the draft has linear layers that our operation takes.

    Raises:
        ValueError: a model or setting that can't be served.
    """
    info = ModelInfo.read(draft.models_path)
    # Our operation runs on CPU; a draft elsewhere takes what its device has.
    on_cpu = (draft.device or device).startswith("CPU")
    backend: Attention = attention if on_cpu else "stock"
    if linear == "native" and not (on_cpu and info.weight_format().startswith("int")):
        linear = None  # asked for the target's layers: this draft has none to take
    sparse = attention_part(verify) if backend == "native" else None
    runner = ModelRunner(
        draft.models_path,
        draft.device or device,
        AttentionConfig(backend) if sparse is None else sparse_attention(backend, sparse),
        draft.properties or properties,
        experts=ExpertConfig(backend, optional=True),
        linear=linear,
    )
    return AssistantDrafter(runner, target.vocab_size, prefill_chunk, info.max_position_embeddings, sparse)
