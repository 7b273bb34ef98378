"""The draft model of a pipeline, compiled as its target is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ovspec.drafters import AssistantDrafter
from ovspec.memory.model_plan import Backends
from ovspec.pipeline.draft_model import DraftModel
from ovspec.pipeline.routing import sparse_attention
from ovspec.runtime.attention_config import Attention, AttentionConfig
from ovspec.runtime.expert_budgets import ExpertConfig
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.runtime.model_runner import ModelRunner
from ovspec.verify.verify_mode import VerifyMode, attention_part
from ovspec_models import ModelInfo


@dataclass(frozen=True, slots=True)
class AssistantChoices:
    """How a draft model is computed.

    Attributes:
        info: of its folder.
        device, attention, properties, linear: as `ModelRunner` takes them.
    """

    info: ModelInfo
    device: str
    attention: Attention
    properties: Mapping[str, object]
    linear: LinearBackend | None

    @classmethod
    def of(
        cls,
        draft: DraftModel,
        device: str,
        attention: Attention,
        properties: Mapping[str, object],
        linear: LinearBackend | None,
    ) -> AssistantChoices:
        """What the user says of the draft, and else what holds for the target.

        Args:
            draft: as the user named it.
            device, attention, properties: of the target.
            linear: of the target; "native" where the draft has linear layers that our operation takes.

        Raises:
            ValueError: its folder holds no model.
        """
        info = ModelInfo.read(draft.models_path)
        device = draft.device or device
        # Our operations run on CPU; a draft elsewhere takes what its device has.
        on_cpu = device.startswith("CPU")
        if linear == "native" and not (on_cpu and info.weight_format().startswith("int")):
            linear = None  # asked for the target's layers: this draft has none to take
        return cls(info, device, attention if on_cpu else "stock", draft.properties or properties, linear)

    def backends(self) -> Backends:
        """The operations that are chosen."""
        return Backends.default(self.properties, self.device, self.attention, self.linear)

    def load(self, vocab_size: int, verify: VerifyMode, prefill_chunk: int) -> AssistantDrafter:
        """Compile the draft model; its attention reads as much as the target's may.

        Args:
            vocab_size: of the target.
            verify: how the target verifies.
            prefill_chunk: rows per pass while a prompt is read.

        Raises:
            ValueError: a model or setting that can't be served.
        """
        backend = self.attention
        sparse = attention_part(verify) if backend == "native" else None
        runner = ModelRunner(
            self.info.folder,
            self.device,
            AttentionConfig(backend) if sparse is None else sparse_attention(backend, sparse),
            self.properties,
            experts=ExpertConfig(backend, optional=True),
            linear=self.linear,
        )
        return AssistantDrafter(runner, vocab_size, prefill_chunk, self.info.max_position_embeddings, sparse)
