"""The pipeline: a drop-in for `openvino_genai.LLMPipeline` with sparse verification."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, overload

import openvino as ov
import openvino_genai
from openvino_genai import ChatHistory, GenerationConfig, TokenizedInputs

from ovspec.devices.clock import microseconds
from ovspec.drafters import DrafterChoice, Parts, ProposesTokens, build_drafter, parse_drafter
from ovspec.engine.engine_thread import EngineThread
from ovspec.engine.requests.request import Request
from ovspec.engine.routing import check_commit, limit_anew
from ovspec.errors import InvalidValueError, PipelineBusyError, refuses_as_genai
from ovspec.generation.chat import Chat
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.inputs import (
    check_prompts,
    check_tokenizer,
    encode,
    read_tokenizer,
    texts_of,
    token_rows,
)
from ovspec.generation.results import DecodedResults, EncodedResults
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

_Tokens: TypeAlias = ChatHistory | TokenizedInputs | ov.Tensor
_Inputs: TypeAlias = str | SequenceOf[str] | _Tokens
_Config: TypeAlias = GenerationConfig | None
_To: TypeAlias = "Streamer | None"
_Progress: TypeAlias = "PromptProgress | None"


class LLMPipeline(Outline):
    """Generates text, verifying drafts densely or sparsely.

    Args:
        models_path: folder that `ovspec export` or `optimum-cli export openvino` wrote, GGUF file, or hub id.
        arguments: `[tokenizer,] [device,] [config]`, as openvino_genai takes them: a tokenizer in place of
            the folder's, an OpenVINO device ("CPU"), OpenVINO properties, joined with `properties`.
        tokenizer, device, config: the same by name.
        draft_model: from `ovspec.draft_model`.
        drafter: "auto" (the default: "suffix" behind a long match, else the draft model if there is one),
            "suffix", "prompt_lookup", "assistant" (the draft model alone), "sparse_self", "layer_skip", one
            of these with options (`ovspec.drafters`), an object of your own with `propose(context, k)`, or
            "none", which is plain decoding.
        verify: "dense" or "commit" (`CommitVerify`), which change nothing, or "sparse" (`SparseVerify`),
            which is lossy.
        prefill: "dense", or "sparse" (`SparsePrefill`), which reads prompts sparsely and is lossy.
        attention: "native" verifies with our operation, "stock" with OpenVINO's own. By default "native" on a
            CPU, where our operations run, and "stock" elsewhere.
        experts: "native" computes the routed experts of a mixture with our CPU operation, "stock" with
            OpenVINO's own. By default as `attention`, and experts of a form that is not known as they are.
        ffn: the same for the gated MLPs of dense layers. By default "native" where channels are limited;
            where they are not, as the model was exported.
        linear: "native" computes linear layers with our CPU operation, "stock" with OpenVINO's own. By
            default "native", unless attention is "stock".
        max_num_batched_tokens: rows of a pass (512), of prompts, drafts and plain steps together; so many
            sequences run at a time at most. Where drafts alone are more, a pass has theirs and a few of
            prompts; one of commits has 128 at most.
        max_context: the most tokens of prompt and answer together; whether there is memory for them is
            asked before the models are compiled. `None`: the model's positions, and whatever fits.
        memory_limit: bytes that may be planned for, instead of those that are free; `math.inf`: any.
        special_tokens_in_content: whether the name of a special token in a message or a prompt that goes
            through the chat template, such as "<|im_end|>", becomes that token; else it stays text.
        properties: OpenVINO properties of the target. The cache defaults to u8 by token. With CACHE_DIR the
            compiled model is kept in that folder, and mapped by later starts. `scheduler_config`, `adapters`
            (an `AdapterConfig`) and `prompt_lookup` mean what they mean for openvino_genai.

    Attributes:
        max_model_len: tokens that prompt and answer may have together.

    Raises:
        InvalidValueError: a folder, model, draft or setting that can't be served; the message says why.
        RuntimeError: the native library does not fit the OpenVINO at hand.
    """

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
        self._info = ModelInfo.read(given_model(models_path))
        mode = parse_verify(verify)
        self._ovspec_config = OvspecConfig.load(self._info.folder)
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
        self._plan = target.plan_memory(max_context, chunk, assistant, memory_limit)
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

    @overload
    def generate(
        self, inputs: str, generation_config: _Config = None, streamer: _To = None, **kwargs: Any
    ) -> str: ...

    @overload
    def generate(
        self, inputs: SequenceOf[str], generation_config: _Config = None, streamer: _To = None, **kwargs: Any
    ) -> DecodedResults: ...

    @overload
    def generate(
        self,
        inputs: ChatHistory | TokenizedInputs | ov.Tensor,
        generation_config: _Config = None,
        streamer: _To = None,
        **kwargs: Any,
    ) -> Any: ...

    def generate(
        self,
        inputs: _Inputs,
        generation_config: _Config = None,
        streamer: _To = None,
        *,
        prompt_progress: _Progress = None,
        **kwargs: Any,
    ) -> str | DecodedResults | EncodedResults:
        """Generate, as `openvino_genai.LLMPipeline.generate` does.

        Args:
            inputs: a prompt, a list of prompts, a chat history, or tokenized prompts.
            generation_config: replaces the pipeline's configuration for this call.
            streamer: gets text (a callable) or tokens (a `StreamerBase`) as they come; one sequence only.
            prompt_progress: called with the tokens of the prompts that have been read, and all of them,
                before the first pass and after every pass that read some; what it raises ends the call.
            kwargs: single fields of the configuration.

        Returns:
            `str` for one prompt with one answer, `DecodedResults` for several or a history,
            `EncodedResults` for tokenized inputs.

        Raises:
            ValueError: an unsupported or contradicting option, or a prompt longer than the model's positions.
            PipelineBusyError: a streamer calls its own pipeline, or another thread's call runs alone: a turn
                of a chat, or one that changes the pipeline. Other calls share the passes of the target.
        """
        chat = self._chat
        with self._calls.admit("generate", alone=chat.is_turn(inputs)):
            if chat is not self._chat and self._chat.is_turn(inputs):
                raise PipelineBusyError("generate: another thread has just started a chat; call it again")
            return self._answer(inputs, generation_config, streamer, prompt_progress, kwargs)

    __call__ = generate

    @refuses_as_genai
    def _answer(
        self,
        inputs: _Inputs,
        generation_config: _Config,
        streamer: _To,
        prompt_progress: _Progress,
        kwargs: dict[str, Any],
    ) -> str | DecodedResults | EncodedResults:
        started = microseconds()
        settings = self.settings(generation_config, **kwargs)
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
        if isinstance(inputs, ChatHistory):
            return self._generate_turn(inputs, settings, call)
        if isinstance(inputs, str) and self._chat.history is not None:
            with self._chat.turn(inputs) as turn:
                turn.answer = str(self._generate_turn(turn.history, settings, call))
                turn.cancelled = call.cancelled
            return turn.answer
        if isinstance(inputs, (TokenizedInputs, ov.Tensor)):
            if settings.parsers:
                raise InvalidValueError("parsers: they take text, and these inputs are answered by tokens")
            self._check_one_answer(settings)
            with self._chat.token_turn(token_rows(inputs)) as tokens:
                answers = self._generate(tokens.prompts, settings, call)
                tokens.answer = None if call.cancelled else answers[0].tokens
            return call.encoded(settings)
        texts = [inputs] if isinstance(inputs, str) else texts_of(inputs)
        if template := settings.apply_chat_template and bool(self._tokenizer.chat_template):
            with call.timed("chat_template_durations"):
                texts = [self._chat_prompts.as_turn(text) for text in texts]
        with call.timed("tokenization_durations"):
            encoded = self._chat_prompts.tokenized if template else partial(encode, self._tokenizer)
            prompts = [encoded(text) for text in texts]
        answers = self._generate(prompts, settings, call)
        results = call.decoded(settings)
        # As in openvino_genai, a prompt that is answered several times gives results, not text.
        return results.texts[0] if isinstance(inputs, str) and len(answers) == 1 else results

    def start_chat(self, system_message: str = "") -> None:
        """Keep the history from here to `finish_chat`."""
        with self._calls.admit("start_chat", alone=True):
            self._chat = Chat()
            self._chat.start(system_message)

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
            share: pipelines of this machine among which that is divided.

        Returns:
            The bound in tokens; no request may have more.

        Raises:
            ValueError: memory does not suffice for a pass of so many requests, or the size for a block.
        """
        kept = self._plan.prefix_cache if size is None else size
        if size is None:
            size = self._room(max_num_seqs=max_num_seqs, max_model_len=self.max_model_len)
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

    def fits(self, history: ChatHistory, new_tokens: int = 1) -> bool:
        """Whether the model has positions for a chat, and for so many tokens of an answer.

        Raises:
            ValueError: the model has no chat template, or the history no message.
        """
        prompt = self._chat_prompts.tokenized(self._chat_prompts.templated(history))
        return len(prompt) + new_tokens <= self.max_model_len

    def _generate(
        self, prompts: SequenceOf[SequenceOf[int]], settings: GenerationSettings, call: GenerationCall
    ) -> list[Answer]:
        whole = self.max_model_len == self._info.max_position_embeddings
        why = self._info.why_no_more_positions if whole else ""
        check_prompts(prompts, self.max_model_len, self._info.vocab_size, why)
        repeated = [prompt for prompt in prompts for _ in range(settings.num_requests)]
        requests = [
            Request(f"generate-{next(self._request_ids)}", prompt, settings, index=index)
            for prompt, index in zip(repeated, occurrences(repeated), strict=True)
        ]
        return call.run(requests, settings)

    def _generate_turn(
        self, history: ChatHistory, settings: GenerationSettings, call: GenerationCall
    ) -> DecodedResults:
        """Answer a history."""
        self._check_one_answer(settings)
        with call.timed("chat_template_durations"):
            text = self._chat_prompts.templated(history)
        with call.timed("tokenization_durations"):
            prompt = self._chat_prompts.tokenized(text)
        self._generate([prompt], settings, call)
        return call.decoded(settings)

    def _check_one_answer(self, settings: GenerationSettings) -> None:
        if (given := settings.num_return_sequences) > 1 and self._chat.history is not None:
            raise InvalidValueError(f"num_return_sequences={given}: a chat takes one answer")
