"""The pipeline: a drop-in for `openvino_genai.LLMPipeline` with sparse verification."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Any, TypeAlias, overload

import openvino as ov
from openvino_genai import ChatHistory, GenerationConfig, TokenizedInputs

from ovspec.errors import InvalidValueError, refuses_as_genai
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.inputs import encode, texts_of, token_rows
from ovspec.generation.results import DecodedResults, EncodedResults
from ovspec.generation.streamer import Streamer
from ovspec.pipeline.generation_call import GenerationCall, PromptProgress
from ovspec.pipeline.loaded_pipeline import LoadedPipeline

_Tokens: TypeAlias = ChatHistory | TokenizedInputs | ov.Tensor
_Inputs: TypeAlias = str | SequenceOf[str] | _Tokens
_Config: TypeAlias = GenerationConfig | None
_To: TypeAlias = "Streamer | None"
_Progress: TypeAlias = "PromptProgress | None"


class LLMPipeline(LoadedPipeline):
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
            prompts; commits have at most 128 more.
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
        with self._admitted(inputs):
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
        settings, call = self._begin(generation_config, streamer, prompt_progress, kwargs)
        if isinstance(inputs, ChatHistory):
            return self._generate_turn(inputs, settings, call)
        if isinstance(inputs, (TokenizedInputs, ov.Tensor)):
            if settings.parsers:
                raise InvalidValueError("parsers: they take text, and these inputs are answered by tokens")
            self._check_one_answer(settings)
            with self._chat.token_turn(token_rows(inputs)) as tokens:
                answers = self._generate(tokens.prompts, settings, call)
                tokens.answer = None if call.cancelled else answers[0].tokens
            return call.encoded(settings)
        texts = [inputs] if isinstance(inputs, str) else texts_of(inputs)
        if self._chat.history is not None:
            self._check_one_answer(settings)
            with self._chat.turn(texts) as turn:
                results = self._generate_turn(turn.history, settings, call)
                turn.answer, turn.cancelled = str(results), call.cancelled
        else:
            results = self._generate_texts(texts, settings, call)
        # As in openvino_genai, a prompt that is answered several times gives results, not text.
        return results.texts[0] if isinstance(inputs, str) and len(results.texts) == 1 else results

    def _generate_texts(
        self, texts: SequenceOf[str], settings: GenerationSettings, call: GenerationCall
    ) -> DecodedResults:
        """Answer texts, each through the chat template if there is one and it is wanted."""
        if template := settings.apply_chat_template and bool(self._tokenizer.chat_template):
            with call.timed("chat_template_durations"):
                texts = [self._chat_prompts.as_turn(text) for text in texts]
        with call.timed("tokenization_durations"):
            encoded = self._chat_prompts.tokenized if template else partial(encode, self._tokenizer)
            prompts = [encoded(text) for text in texts]
        self._generate(prompts, settings, call)
        return call.decoded(settings)

    def fits(self, history: ChatHistory, new_tokens: int = 1) -> bool:
        """Whether the model has positions for a chat, and for so many tokens of an answer.

        Raises:
            ValueError: the model has no chat template, or the history no message.
        """
        prompt = self._chat_prompts.tokenized(self._chat_prompts.templated(history))
        return len(prompt) + new_tokens <= self.max_model_len

    def _generate_turn(
        self, history: ChatHistory, settings: GenerationSettings, call: GenerationCall
    ) -> DecodedResults:
        """Answer a history."""
        with call.timed("chat_template_durations"):
            text = self._chat_prompts.templated(history)
        with call.timed("tokenization_durations"):
            prompt = self._chat_prompts.tokenized(text)
        self._generate([prompt], settings, call)
        return call.decoded(settings)
