"""The target of a pipeline: how it is computed, what memory that takes, and the target itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ovspec.adapters.adapter import Adapter
from ovspec.adapters.adapter_config import PipelineAdapters
from ovspec.devices.devices import is_cpu, resolve_device
from ovspec.drafters import DrafterChoice, LayerSkip
from ovspec.engine.routing import expert_routing, ffn_routing, routing
from ovspec.memory.memory_plan import MemoryPlan, cache_room, plan_memory
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertBackend, ExpertConfig
from ovspec.operations.ffn_budgets import FfnBackend, FfnConfig
from ovspec.operations.linear_backend import LinearBackend
from ovspec.operations.native_attention import attention_on
from ovspec.pipeline.models.assistant_model import AssistantChoices
from ovspec.pipeline.models.head_model import HeadChoices
from ovspec.proofs.reference_check import check_reference
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify


@dataclass(frozen=True, slots=True)
class TargetChoices:
    """How a target is computed, as its user, its verification and its drafter ask."""

    info: ModelInfo
    backends: Backends
    adapters: tuple[Adapter, ...] = ()

    @classmethod
    def of(
        cls,
        info: ModelInfo,
        verify: VerifyMode,
        drafter: DrafterChoice | None,
        device: str,
        properties: Mapping[str, object],
        attention: Attention | None,
        experts: ExpertBackend | None,
        ffn: FfnBackend | None,
        linear: LinearBackend | None,
        boundaries: tuple[int, ...] = (),
        prefill: SparsePrefill | None = None,
        prompt_rule: SparseVerify | None = None,
        adapters: PipelineAdapters | None = None,
    ) -> TargetChoices:
        """Resolve what the user says, and what verification and the drafter need of the graph.

        Args:
            device, properties, attention, experts, ffn, linear: as `LLMPipeline` takes them.
            boundaries: whose hidden states the drafter reads.
            prefill: how prompts are read; `None`: densely.
            prompt_rule: as in `routing`.
            adapters: of the pipeline; `None`: requests can use none.

        Raises:
            ValueError: verification and the drafter ask for different things, or as `Backends.resolve`.
        """
        device = resolve_device(device)
        attention = attention_on(device, attention, info.folder)
        graph = routing(attention, verify, drafter, prefill, prompt_rule)
        backend = experts or attention
        limits = expert_routing(backend, verify, drafter) or ExpertConfig(backend, optional=experts is None)
        mlps = ffn_routing(ffn, verify, drafter) or (FfnConfig(ffn) if ffn else None)
        skips = isinstance(drafter, LayerSkip)
        if skips and not is_cpu(device):
            raise ValueError(f"drafter='layer_skip' drafts on CPUs only, device={device!r}: take another")
        backends = Backends.resolve(
            info.folder,
            device,
            properties,
            graph,
            limits,
            mlps,
            linear,
            boundaries=boundaries,
            skips_layers=skips,
            adapts=adapters is not None,
        )
        if skips and not backends.joins_layers:
            raise ValueError(
                f"drafter='layer_skip' leaves out steps of ovspec's own layers, and this model has "
                f"attention='{backends.attention.backend}', linear='{backends.linear}': set both to "
                "'native', or take another drafter"
            )
        return cls(info, backends, adapters.adapters if adapters else ())

    def plan_memory(
        self,
        max_context: int | None,
        max_num_batched_tokens: int,
        assistant: AssistantChoices | HeadChoices | None,
        limit: float | None = None,
        pictures: int = 0,
    ) -> MemoryPlan:
        """Plan for a pipeline of this target, with or without a draft model, that fits.

        Args:
            max_context: tokens that it is asked to hold; `None`: any few, and so the models alone.
            max_num_batched_tokens: rows of a pass at most.
            limit: bytes that it may take; `None`: what the machine has, infinity: whatever it takes.
            pictures: bytes for reading pictures.

        Raises:
            ValueError: it does not fit, or as `ovspec.memory.memory_plan.plan_memory`.
        """
        number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if limit is not None and not (number and limit >= 1):
            raise ValueError(f"memory_limit={limit!r}: expected bytes above 0, or math.inf for no limit")
        together = assistant if assistant and assistant.backends.device == self.backends.device else None
        few = min(32, self.info.max_position_embeddings or 32)
        plan = plan_memory(
            self.info,
            few if max_context is None else max_context,
            draft=together.info if together else None,
            max_num_batched_tokens=max_num_batched_tokens,
            available=None if limit is None or math.isinf(limit) else int(limit),
            backends=self.backends,
            draft_backends=together.backends if together else None,
            adapters=sum(adapter.nbytes for adapter in self.adapters),
            pictures=pictures,
        )
        if limit != math.inf:
            plan.check()
            if assistant and not together:
                beside = plan_memory(
                    assistant.info,
                    min(plan.context, assistant.info.max_position_embeddings or plan.context),
                    backends=assistant.backends,
                )
                beside.check()
        return plan

    def cache_room(
        self,
        plan: MemoryPlan,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        assistant: AssistantChoices | HeadChoices | None,
        share: int = 1,
        drafts: bool = True,
    ) -> int:
        """Bytes of keys and values that a plan's memory has room for, as `memory_plan.cache_room`."""
        together = assistant if assistant and assistant.backends.device == self.backends.device else None
        return cache_room(
            self.info,
            max_num_seqs,
            max_model_len,
            plan.available,
            draft=together.info if together else None,
            max_num_batched_tokens=max_num_batched_tokens,
            backends=self.backends,
            draft_backends=together.backends if together else None,
            adapters=plan.adapters,
            pictures=plan.pictures,
            share=share,
            drafts=drafts,
        )

    def load(self, compiling: Callable[[], None] | None = None) -> ModelRunner:
        """Compile the target, of an untested family behind a check against the exported graph.

        Args:
            compiling: as of `ModelRunner`.

        Raises:
            ValueError: as `ModelRunner`, the check fails, or an adapter is for another model.
            RuntimeError: likewise.
        """
        if self.backends.on_cpu:
            place = self.backends.properties.get("CACHE_DIR")
            check_reference(self.info, self._exact_runner, self.backends.graph, place)
        runner = ModelRunner(self.info.folder, backends=self.backends, compiling=compiling)
        runner.adapters.check(self.adapters)
        return runner

    def _exact_runner(self, properties: dict[str, Any]) -> ModelRunner:
        """The model in f32 with the same kinds of operations, OpenVINO's linear layers, and no limits."""
        chosen = self.backends
        return ModelRunner(
            self.info.folder,
            chosen.device,
            AttentionConfig(chosen.attention.backend),
            properties,
            experts=chosen.experts and ExpertConfig(chosen.experts.backend, optional=True),
            ffn=chosen.ffn and FfnConfig(chosen.ffn.backend),
            linear="stock",
        )
