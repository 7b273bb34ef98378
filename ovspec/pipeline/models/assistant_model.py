"""The draft model of a pipeline, compiled as its target is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ovspec.devices.devices import is_cpu, resolve_device
from ovspec.drafters import AssistantDrafter
from ovspec.engine.routing import sparse_attention
from ovspec.modes.verify_mode import VerifyMode, attention_part
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.draft_settings import draft_properties, reads_all
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.linear_backend import LinearBackend
from ovspec.operations.native_attention import attention_on
from ovspec.pipeline.models.draft_model import DraftModel
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify


@dataclass(frozen=True, slots=True)
class AssistantChoices:
    """How a draft model is computed.

    Attributes:
        sparse: what its attention may read, `None` for all.
        boundaries: of the target, whose hidden states it reads: none.
    """

    info: ModelInfo
    backends: Backends
    sparse: SparseVerify | None
    boundaries: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def of(
        cls,
        draft: DraftModel,
        verify: VerifyMode,
        device: str,
        attention: Attention | None,
        properties: Mapping[str, object],
        linear: LinearBackend | None,
    ) -> AssistantChoices:
        """Resolve what the user says of the draft, and else what holds for the target.

        Args:
            verify: how the target verifies; the draft's attention reads as much as the target's may, or all
                where it is small, see `reads_all`.
            linear: of the target.

        Raises:
            ValueError: its folder holds no model, or as `Backends.resolve`.
        """
        info = ModelInfo.read(draft.models_path)
        device = resolve_device(draft.device or device)
        # Our operations run on CPU; a draft elsewhere takes what its device has.
        backend = attention_on(device, attention if is_cpu(device) else None, info.folder)
        sparse = None if backend != "native" or reads_all(info) else attention_part(verify)
        reads = AttentionConfig(backend) if sparse is None else sparse_attention(backend, sparse)
        backends = Backends.resolve(
            info.folder,
            device,
            draft_properties(draft.properties or properties, backend, info.weight_bytes),
            reads,
            ExpertConfig(backend, optional=True),
            linear=linear if is_cpu(device) else None,
        )
        # Layers that our operation does not take stay as they are: nobody asked for it.
        return cls(info, replace(backends, linear_required=False, drafts=True), sparse)

    def load(self, vocab_size: int, prefill_chunk: int) -> AssistantDrafter:
        """Compile the draft model.

        Raises:
            ValueError: a model or setting that can't be served.
        """
        runner = ModelRunner(self.info.folder, backends=self.backends)
        positions, known = self.info.max_position_embeddings, self.info.vocab_size
        return AssistantDrafter(runner, vocab_size, prefill_chunk, positions, self.sparse, known)
