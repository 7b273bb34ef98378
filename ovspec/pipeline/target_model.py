"""The target of a pipeline: how it is computed, what memory that takes, and the target itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import openvino as ov

from ovspec.drafters import DrafterChoice
from ovspec.memory.memory_plan import MemoryPlan, plan_memory
from ovspec.memory.model_plan import Backends
from ovspec.pipeline.assistant_model import AssistantChoices
from ovspec.pipeline.routing import expert_routing, ffn_routing, routing, sparse_passes
from ovspec.runtime.attention_config import Attention, AttentionConfig
from ovspec.runtime.compile import check_properties, with_defaults
from ovspec.runtime.expert_budgets import ExpertBackend, ExpertConfig
from ovspec.runtime.ffn_budgets import FfnBackend, FfnConfig, calibrated_channels
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.runtime.model_cache import ModelCache
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.paged_graph import graph_choices
from ovspec.runtime.reference_check import check_reference
from ovspec.runtime.row_rounding import rounding_settings, rounds_rows, row_bits
from ovspec.verify.verify_mode import VerifyMode
from ovspec_models import ModelInfo


@dataclass(frozen=True, slots=True)
class TargetChoices:
    """How a target is computed, as its user, its verification and its drafter ask.

    Attributes:
        info: of its folder.
        device, properties, attention, experts, ffn, linear: as `ModelRunner` takes them.
    """

    info: ModelInfo
    device: str
    properties: Mapping[str, object]
    attention: AttentionConfig
    experts: ExpertConfig
    ffn: FfnConfig | None
    linear: LinearBackend | None

    @classmethod
    def of(
        cls,
        info: ModelInfo,
        verify: VerifyMode,
        drafter: DrafterChoice | None,
        device: str,
        properties: Mapping[str, object],
        attention: Attention,
        experts: ExpertBackend | None,
        ffn: FfnBackend | None,
        linear: LinearBackend | None,
    ) -> TargetChoices:
        """What the user says, and what verification and the drafter need of the graph.

        Args:
            info: of the target's folder.
            verify: how it verifies.
            drafter: who drafts.
            device, properties, attention, experts, ffn, linear: as `LLMPipeline` takes them.

        Raises:
            ValueError: verification and the drafter ask for different things, or channels that were not
                calibrated.
        """
        graph = routing(attention, verify, drafter)
        backend = experts or attention
        limits = expert_routing(backend, verify, drafter) or ExpertConfig(backend, optional=experts is None)
        channels = calibrated_channels(info.folder, sparse_passes(verify, drafter))
        mlps = ffn_routing(ffn, verify, drafter, channels) or (FfnConfig(ffn) if ffn else None)
        return cls(info, device, properties, graph, limits, mlps, linear)

    def backends(self) -> Backends:
        """The operations that are chosen, and whether CACHE_DIR holds the model as they are.

        Raises:
            ValueError: a CACHE_DIR, or a property, that can't be served.
        """
        wanted = rounding_settings(self.info.folder, self.properties)
        backends = Backends.default(
            wanted, self.device, self.attention.backend, self.linear, self.experts.backend, self.ffn
        )
        if not backends.keeps:
            return backends
        core, settings = ov.Core(), with_defaults(self.properties, self.device)
        check_properties(core, self.device, settings)
        rounds = rounds_rows(self.info.folder, self.ffn, backends.linear)
        rounding = row_bits(self.device, wanted) if rounds else None
        choices = graph_choices(self.attention, self.experts, self.ffn, backends.linear, rounding)
        cache = ModelCache(core, self.info.folder, self.device, settings, choices)
        return replace(backends, keeps=not cache.refuses(), kept=cache.holds())

    def plan_memory(
        self, max_context: int | None, max_num_batched_tokens: int, assistant: AssistantChoices | None
    ) -> MemoryPlan:
        """Plan for a pipeline of this target, with or without a draft model.

        Args:
            max_context: tokens that it is asked to hold; `None`: any few, and so the models alone.
            max_num_batched_tokens: rows of a pass while a prompt is read.
            assistant: how its draft model is computed.

        Raises:
            ValueError: as `ovspec.memory.memory_plan.plan_memory` and `backends`.
        """
        few = min(32, self.info.max_position_embeddings or 32)
        return plan_memory(
            self.info,
            few if max_context is None else max_context,
            draft=None if assistant is None else assistant.info,
            properties=self.properties,
            max_num_batched_tokens=max_num_batched_tokens,
            device=self.device,
            backends=self.backends(),
            draft_backends=None if assistant is None else assistant.backends(),
            draft_properties=None if assistant is None else assistant.properties,
            draft_device=None if assistant is None else assistant.device,
        )

    def load(self) -> ModelRunner:
        """Compile the target, of an untested family behind a check against the exported graph.

        Raises:
            ValueError: as `ModelRunner`, or the check fails.
            RuntimeError: likewise.
        """
        if self.device.startswith("CPU"):
            dense = replace(
                self,
                attention=AttentionConfig(self.attention.backend),
                experts=ExpertConfig(self.experts.backend, optional=True),
                ffn=None if self.ffn is None else FfnConfig(self.ffn.backend),
                linear="stock",
            )
            check_reference(
                self.info,
                lambda exact: replace(dense, properties=exact)._runner(),
                self.properties.get("CACHE_DIR"),
            )
        return self._runner()

    def _runner(self) -> ModelRunner:
        return ModelRunner(
            self.info.folder,
            self.device,
            self.attention,
            self.properties,
            experts=self.experts,
            ffn=self.ffn,
            linear=self.linear,
        )
