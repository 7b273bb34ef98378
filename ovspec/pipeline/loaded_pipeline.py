"""What pipelines have in common: models, an engine, and what they are asked about."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import openvino_genai
from openvino_genai import GenerationConfig

from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.devices.clock import microseconds
from ovspec.drafters import DrafterChoice, Parts, ProposesTokens, build_drafter, parse_drafter
from ovspec.engine.engine_thread import EngineThread
from ovspec.engine.requests.request import Request
from ovspec.engine.routing import check_commit, limit_anew
from ovspec.errors import InvalidValueError, PipelineBusyError, refuses_as_genai
from ovspec.generation.chat import Chat
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.inputs import check_prompts, check_tokenizer, read_tokenizer
from ovspec.generation.sequence import occurrences
from ovspec.generation.streamer import Streamer
from ovspec.memory.memory_plan import MemoryPlan
from ovspec.modes.sparse_prefill import SparsePrefill, parse_prefill
from ovspec.modes.verify_mode import VerifyMode, calibrated_mode, parse_verify, sparse_part, why_lossy
from ovspec.operations.attention_config import Attention
from ovspec.operations.expert_budgets import ExpertBackend
from ovspec.operations.ffn_budgets import FfnBackend
from ovspec.operations.linear_backend import LinearBackend
from ovspec.pipeline.beside import Beside
from ovspec.pipeline.call_gate import CallGate
from ovspec.pipeline.generation_call import Answer, GenerationCall, PromptProgress
from ovspec.pipeline.models.draft_model import DraftModel
from ovspec.pipeline.models.given_model import given_model
from ovspec.pipeline.models.head_model import draft_choices
from ovspec.pipeline.models.target_model import TargetChoices
from ovspec.pipeline.outline import Outline
from ovspec.pipeline.pipeline_arguments import PipelineArguments
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.folder.sparse_verify import SparseVerify


class LoadedPipeline(Outline):
    """What pipelines have in common: their models, and the engine that answers requests.

    Args:
        as of `LLMPipeline`.
    """

    # Memory for reading pictures.
    _picture_bytes: ClassVar[int] = 0

    @refuses_as_genai
    def __init__(
        self,
        models_path: str | Path,
        *arguments: openvino_genai.Tokenizer | str | Mapping[str, Any],
        tokenizer: openvino_genai.Tokenizer | None = None,
        device: str | None = None,
        config: Mapping[str, Any] | None = None,
        draft_model: DraftModel | None = None,
        drafter: DrafterChoice | ProposesTokens | str | None = None,
        verify: VerifyMode | str = "dense",
        prefill: SparsePrefill | str = "dense",
        attention: Attention | None = None,
        experts: ExpertBackend | None = None,
        ffn: FfnBackend | None = None,
        linear: LinearBackend | None = None,
        max_num_batched_tokens: int | None = None,
        max_context: int | None = None,
        memory_limit: float | None = None,
        special_tokens_in_content: bool = False,
        **properties: Any,
    ) -> None:
        started = time.perf_counter()
        named = {"tokenizer": tokenizer, "device": device, "config": config}
        given = PipelineArguments.parse(arguments, named, properties)
        device, properties = given.device, given.properties
        reading = parse_prefill(prefill)
        chunk = given.prefill_chunk(max_num_batched_tokens, reading is not None)
        if given.prompt_lookup and drafter is None:
            drafter = "prompt_lookup"
        if draft_model is not None and not isinstance(draft_model, DraftModel):
            raise ValueError("draft_model: expected what ovspec.draft_model(path, device) returns")
        choice = parse_drafter(drafter, draft_model is not None)
        if given.prompt_lookup and (choice is None or choice.name != "prompt_lookup"):
            raise ValueError(f"prompt_lookup=True and drafter={drafter!r}: leave one of them out")
        self._info = self._read_info(given_model(models_path))
        mode = parse_verify(verify)
        self._ovspec_config = OvspecConfig.load(self._info.folder)
        self._info.check_calibration(self._ovspec_config)
        calibrated = calibrated_mode(mode, self._ovspec_config)
        assistant = draft_choices(draft_model, self._info, calibrated, device, attention, properties, linear)
        rule = sparse_part(calibrated_mode(SparseVerify(), self._ovspec_config))
        choices = (attention, experts, ffn, linear, assistant.boundaries if assistant else (), reading, rule)
        adapters = given.adapters
        target = TargetChoices.of(self._info, calibrated, choice, device, properties, *choices, adapters)
        if given.tokenizer is None:
            check_tokenizer(self._info.folder)
        # OpenVINO compiles without Python, which the tokenizer takes for a tenth of a second.
        beside = Beside(lambda: given.tokenizer or read_tokenizer(self._info.folder))
        self._plan = target.plan_memory(max_context, chunk, assistant, memory_limit, self._picture_bytes)
        self._room = partial(target.cache_room, self._plan, max_num_batched_tokens=chunk, assistant=assistant)
        self._target = target.load(compiling=beside.begin)
        content, tokenizer = special_tokens_in_content, beside.result()
        super().__init__(self._info, calibrated, choice, tokenizer, max_context, content, adapters)
        check_commit(self._target, mode)
        self._assistant = assistant.load(self._info.vocab_size, chunk) if assistant else None
        parts = Parts(self._target, self._tokenizer, self._info.vocab_size, self._assistant)
        proposing, limits = build_drafter(choice, parts), (chunk, self.max_model_len, self._plan)
        engine = given.engine(self._target, proposing, mode, *limits, self._ovspec_config, self.grammars)
        self._engine = EngineThread(engine)
        self._request_ids, self._chat, self._calls = itertools.count(), Chat(), CallGate()
        self._load_time = 1e3 * (time.perf_counter() - started)

    def start_chat(self, system_message: str = "") -> None:
        """Keep the history from here to `finish_chat`."""
        with self._calls.admit("start_chat", alone=True):
            chat = Chat()
            chat.start(system_message)
            self._chat = chat

    def finish_chat(self) -> None:
        """Forget the chat."""
        with self._calls.admit("finish_chat", alone=True):
            self._chat = Chat()

    @property
    def verify(self) -> VerifyMode:
        """How the target verifies. What it may read can be set anew between calls, without another model.

        Raises:
            ValueError: when set to something that this pipeline's graph was not built for.
            PipelineBusyError: when set while a call runs.
        """
        return self._verify

    @verify.setter
    def verify(self, verify: VerifyMode | str) -> None:
        with self.alone("setting verify"):
            self._set_verify(verify)

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Run a block as the call `name`; PipelineBusyError while another call runs."""
        return self._calls.alone(name, self._engine)

    @contextmanager
    def _admitted(self, inputs: object) -> Iterator[None]:
        """Run a block as a call of `generate`; a turn of a chat runs alone.

        Raises:
            PipelineBusyError: another call excludes it, or another thread has just started a chat.
        """
        chat = self._chat
        with self._calls.admit("generate", alone=chat.is_turn(inputs)):
            if chat is not self._chat and self._chat.is_turn(inputs):
                raise PipelineBusyError("generate: another thread has just started a chat; call it again")
            yield

    @refuses_as_genai
    def _set_verify(self, verify: VerifyMode | str) -> None:
        mode = parse_verify(verify)
        chosen = calibrated_mode(mode, self._ovspec_config)
        limit_anew(self._target, self._assistant, chosen, self._choice)
        self._verify, self._engine.engine.verify = chosen, mode

    @property
    def prefill(self) -> SparsePrefill | None:
        """How prompts are read; `None`: densely."""
        return self._target.attention.prefill

    @property
    def models_path(self) -> Path:
        """The model's folder."""
        return self._info.folder

    @property
    def engine(self) -> EngineThread:
        """What answers requests, for servers: it takes them from any thread, beside calls of `generate`."""
        return self._engine

    @property
    def memory_plan(self) -> MemoryPlan:
        """What was expected of this pipeline's memory before its models were compiled."""
        return self._plan

    def bound_cache(self, max_num_seqs: int, size: int | None = None, share: int = 1) -> int:
        """Bound keys and values, for a server: requests that do not fit wait, or are read again later.

        Args:
            max_num_seqs: requests that run at a time.
            size: bytes of the target's keys and values, those of ended requests included; `None`: what the
                memory plan leaves.
            share: pipelines of this machine among which the plan's memory is divided.

        Returns:
            The bound in tokens; no request may have more.

        Raises:
            ValueError: memory does not suffice for a pass of so many requests, or the size for a block.
        """
        kept = self._plan.prefix_cache if size is None else size
        if size is None:
            longest, drafts = self.max_model_len, self.drafts
            size = self._room(max_num_seqs=max_num_seqs, max_model_len=longest, share=share, drafts=drafts)
        self._target.limit_cache(size, min(kept, size))
        if not (tokens := int(self._target.blocks.max_tokens)):
            block = f"a block of {self._target.block_size} tokens has {self._target.cache.block_bytes} bytes"
            raise ValueError(f"--cache-size {size}: {block}; give more")
        self.max_model_len = self._engine.engine.max_model_len = min(self.max_model_len, tokens)
        return tokens

    @property
    def runner(self) -> ModelRunner:
        """The target as the pipeline runs it, for measurements."""
        return self._target

    def _read_info(self, folder: Path) -> ModelInfo:
        """Facts about the folder, with the bytes of all weights that the pipeline computes with."""
        return ModelInfo.read(folder)

    def _begin(
        self,
        config: GenerationConfig | None,
        streamer: Streamer | None,
        prompt_progress: PromptProgress | None,
        fields: Mapping[str, Any],
    ) -> tuple[GenerationSettings, GenerationCall]:
        """How a call answers, and the call."""
        started = microseconds()
        settings = self.settings(config, **fields)
        threshold = settings.acceptance_threshold
        call = GenerationCall(
            self._engine,
            self._tokenizer,
            self._load_time,
            streamer,
            lambda verified, read: why_lossy(
                "dense" if verified else self.verify, threshold, None if read else self.prefill
            ),
            self.runner.identity_breakers + settings.identity_breakers,
            prompt_progress,
        )
        if settings.grammar is not None:
            call.count_grammar(started, self.grammars.init_times)
        return settings, call

    def _generate(
        self,
        prompts: SequenceOf[SequenceOf[int]],
        settings: GenerationSettings,
        call: GenerationCall,
        visual: VisualPrompt | None = None,
    ) -> list[Answer]:
        """Answer prompts, to each of which `visual` belongs."""
        whole = self.max_model_len == self._info.max_position_embeddings
        fewer = "max_context or the size of the cache sets fewer than it has"
        why = self._info.why_no_more_positions if whole else fewer
        check_prompts(prompts, self.max_model_len, self._info.vocab_size, why)
        repeated = [prompt for prompt in prompts for _ in range(settings.num_requests)]
        requests = [
            Request(f"generate-{next(self._request_ids)}", prompt, settings, index=index, visual=visual)
            for prompt, index in zip(repeated, occurrences(repeated), strict=True)
        ]
        return call.run(requests, settings)

    def _check_one_answer(self, settings: GenerationSettings) -> None:
        if (given := settings.num_return_sequences) > 1 and self._chat.history is not None:
            raise InvalidValueError(f"num_return_sequences={given}: a chat takes one answer")
