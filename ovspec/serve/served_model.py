"""The model that a server has: names, prompts, settings of a request."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import openvino as ov
from openvino_genai import ChatHistory

from ovspec import __version__
from ovspec.adapters.adapter_config import AdapterConfig
from ovspec.errors import raised_by_us
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.grammars.token_bytes import TokenBytes
from ovspec.generation.inputs import tokenized
from ovspec.generation.token_text import TokenText
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode, sparse_part
from ovspec.pipeline.outline import Outline
from ovspec.serve.output.harmony import harmony_encoding, is_harmony
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import GenerationBody
from ovspec.serve.requests.fill_in_middle import FillInMiddle
from ovspec.serve.requests.messages import Message, with_short_ids
from ovspec.serve.requests.served_pictures import ServedPictures
from ovspec.serve.requests.tool_fields import Tool
from ovspec.vision.picture_prompts import PicturePrompt
from ovspec_models import ModelInfo
from ovspec_models.folder.graph_files import graphs_of, weight_bytes
from ovspec_models.folder.jsonl import read_utf8
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_transforms import last_line

# Characters of JSON for a token of the context; tokenizers need two to four.
_TOKEN_CHARACTERS = 16
# Fields of a body that openvino_genai's configuration has too, by their names there.
_SAME = (
    *("top_p", "presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty", "ignore_eos"),
    *("include_stop_str_in_output", "num_assistant_tokens_schedule", "tree_depth", "branching_factor"),
    *("acceptance_rule", "no_repeat_ngram_size"),
)
_RENAMED = {
    "max_new_tokens": "max_tokens",
    "rng_seed": "seed",
    "stop_strings": "stop",
    "min_new_tokens": "min_tokens",
}


def _fingerprint(folder: Path, verify: VerifyMode) -> str:
    """Of what the answer to a request with a seed depends on beside it, short of the weights themselves."""
    known = hashlib.sha256(f"{__version__} {ov.get_version()} {verify!r}".encode())
    for file in (folder / "config.json", *graphs_of(folder)):
        known.update(file.read_bytes())
    known.update(str(weight_bytes(folder)).encode())
    return f"fp_{known.hexdigest()[:10]}"


class ServedModel:
    """A pipeline under its served name.

    Args:
        folder: of the model, as the user gave it.
        name: what clients call it.
        chat_template: in place of the model's.
        adapters: LoRA adapters by the names that clients call them, as models of their own.
        pictures: folder whose files messages may name as pictures.

    Attributes:
        fingerprint: OpenAI's `system_fingerprint`.
    """

    def __init__(
        self,
        requests: Outline,
        folder: Path,
        name: str,
        chat_template: str | None = None,
        adapters: Mapping[str, AdapterConfig] | None = None,
        pictures: Path | None = None,
    ) -> None:
        self.name, self.root, self.adapters = name, str(folder), adapters or {}
        self.requests = requests
        self.pictures = ServedPictures(requests.picture_prompts, pictures)
        self.tokenizer = requests.get_tokenizer()
        if chat_template is not None:
            self.tokenizer.set_chat_template(chat_template)
        self.token_text = TokenText(self.tokenizer)
        self.max_model_len = requests.max_model_len
        info = ModelInfo.read(folder)
        self.vocab_size, self.fingerprint = info.vocab_size, _fingerprint(info.folder, requests.verify)
        self.created = int(time.time())
        #: The format of GPT-OSS's answers, where the model has it.
        self.harmony = None
        if is_harmony(str(self.tokenizer.chat_template)):
            known = TokenBytes.of(self.tokenizer)
            self.harmony = harmony_encoding([] if known is None else known.table)

    def check_name(self, name: str | None) -> str:
        """Refuse a request for another model; the name of the one that answers.

        Raises:
            ApiError: 404.
        """
        if name is not None and name in self.adapters:
            return name
        if name not in (None, self.name, self.root):
            served = ", ".join(map(repr, (self.name, *self.adapters)))
            message = f"model={name!r}: not served here; this server has {served}"
            raise ApiError(404, message, "model", "model_not_found")
        return self.name

    def tokens_of(self, text: str, special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return tokenized(self.tokenizer, text, special_tokens)

    def with_suffix(self, prompt: str | Sequence[int], suffix: str) -> list[int]:
        """The prompt for what stands between a prompt, as text or token ids, and a suffix.

        Raises:
            ApiError: 400, the tokenizer has no tokens for that.
        """
        if self._fill_in_middle is None:
            message = "suffix: this model's tokenizer has no tokens to fill in the middle; leave it out"
            raise ApiError(400, message, "suffix")
        begin = self._begin
        if isinstance(prompt, str):
            prefix = self.tokens_of(prompt, False)
        else:
            prefix = list(prompt)
            prefix = prefix[len(begin) :] if prefix[: len(begin)] == begin else prefix
        return [*begin, *self._fill_in_middle.prompt(prefix, self.tokens_of(suffix, False))]

    @cached_property
    def _begin(self) -> list[int]:
        """Tokens that the tokenizer puts before a text; it may put others behind."""
        bare, whole = self.tokens_of("a", False), self.tokens_of("a")
        places = range(len(whole) - len(bare) + 1)
        return whole[: next((at for at in places if whole[at : at + len(bare)] == bare), 0)]

    @cached_property
    def _fill_in_middle(self) -> FillInMiddle | None:
        return FillInMiddle.of(lambda name: self.tokens_of(name, False))

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of token ids, with the names of special tokens, as vLLM's `/detokenize` gives it."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False)) if tokens else ""

    def prompt(self, text: str, messages: Sequence[Message]) -> PicturePrompt:
        """The prompt of messages whose `chat_text` is given.

        Raises:
            ApiError: 400, pictures that can't be read.
        """
        encoded, prompts = self.pictures.encoded(messages, self.max_model_len), self.pictures.prompts
        if not encoded or prompts is None:
            return PicturePrompt(self.requests.chat_prompts.tokenized(text), None)
        try:
            return prompts.prompt(text, encoded)
        except ValueError as error:
            if not raised_by_us(error):
                raise
            raise ApiError(400, f"messages: {error}", "messages", "invalid_value") from error

    def chat_text(
        self,
        messages: Sequence[Message],
        special_tokens: bool = False,
        tools: Sequence[Tool] = (),
        context: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
    ) -> str:
        """A chat through the model's template, for `chat_prompts.tokenized`.

        Args:
            special_tokens: whether the names of special tokens in messages become these tokens.
            tools: that the model is told of.
            context: other variables of the template.
            add_generation_prompt, continues: as of `ChatPrompts.templated`.

        Raises:
            ApiError: 400, the model has no template, or it does not take these messages.
        """
        if not self.tokenizer.chat_template:
            raise ApiError(400, "this model has no chat template; use /v1/completions", "messages")
        self.pictures.check(messages)
        marks = self.pictures.marks()
        written = [{**message.templated, "content": message.shown(marks)} for message in messages]
        if "[TOOL_CALLS]" in str(self.tokenizer.chat_template):
            with_short_ids(written)
        described = [tool.model_dump(exclude_none=True) for tool in tools or ()]
        self._check_size("tools", described)
        self._check_size("messages.tool_calls", [message.get("tool_calls") for message in written])
        self._check_size("chat_template_kwargs", context)
        try:
            history = ChatHistory(written)
            if tools:
                history.set_tools(described)
            if context:
                history.set_extra_context(dict(context))
            return self.requests.chat_prompts.templated(
                history, special_tokens, add_generation_prompt, continues
            )
        except (ValueError, RuntimeError) as error:
            message = str(error) if raised_by_us(error) else f"messages: {last_line(error)}; change them"
            raise ApiError(400, message, message.partition(":")[0]) from error

    def _check_size(self, field: str, value: object) -> None:
        """Refuse objects that no prompt of this model holds: templates take a second for a megabyte.

        Raises:
            ApiError: 400.
        """
        most, size = _TOKEN_CHARACTERS * self.max_model_len, len(json.dumps(value))
        if size > most:
            message = (
                f"{field}: {size} characters of JSON, at most {most} are taken, {_TOKEN_CHARACTERS} for each "
                f"of the {self.max_model_len} tokens of this model's context; shorten it"
            )
            raise ApiError(400, message, field, "context_length_exceeded")

    def check_length(self, num_tokens: int, max_tokens: int | None, field: str, limit_field: str) -> None:
        """Refuse a prompt that can never be answered, or an answer that is too long for it.

        Args:
            num_tokens: of the prompt.
            max_tokens: of the answer, where the body says so.
            field: that the prompt stands in.
            limit_field: that `max_tokens` stands in.

        Raises:
            ApiError: 400 with the limit.
        """
        limit = self.max_model_len
        if num_tokens == 0:
            raise ApiError(400, f"{field}: it has no tokens; send some text", field)
        if num_tokens + (1 if max_tokens is None else max_tokens) > limit:
            wrong, remedy = field, "shorten the prompt"
            if num_tokens < limit and max_tokens:
                wrong, remedy = limit_field, f"ask for at most {limit - num_tokens}, or shorten the prompt"
            asked = f" and {max_tokens} for the answer" if max_tokens else ""
            message = (
                f"{wrong}: {num_tokens} tokens of the prompt{asked}; this model's maximum context length is "
                f"{limit} tokens for both together: {remedy}"
            )
            raise ApiError(400, message, wrong, "context_length_exceeded")

    def check_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            ApiError: 400.
        """
        if tokens and max(tokens) >= self.vocab_size:
            message = f"{field}: {max(tokens)} is no token of this model; ids are 0 to {self.vocab_size - 1}"
            raise ApiError(400, message, field, "invalid_value")

    def settings(
        self, body: GenerationBody, max_tokens: int | None, grammar: Grammar | None = None
    ) -> GenerationSettings:
        """How a request is to be answered: the folder's configuration with the body's fields.

        Args:
            max_tokens: of the answer, where the body says so.
            grammar: that the answer follows.

        Raises:
            ApiError: 400, a combination of fields that can't be served.
        """
        config = self.requests.get_generation_config()
        # As in `generate`: a folder that says how to sample is followed, else the answer is greedy.
        temperature = 0.0 if body.use_beam_search else body.temperature
        if temperature is None:
            temperature = float(config.temperature) if config.do_sample else 0.0
        fields: dict[str, Any] = {"do_sample": temperature > 0}
        if body.use_beam_search:
            fields |= {"num_beams": body.num_candidates, "num_return_sequences": body.n}
            fields["length_penalty"] = body.length_penalty
        if (adapters := self.adapters.get(body.model or "")) is not None:
            fields["adapters"] = adapters
        if temperature > 0:
            fields["temperature"] = temperature
        for name in (*_SAME, *_RENAMED):
            value = getattr(body, _RENAMED.get(name, name))
            if value is not None:
                fields[name] = value
        if max_tokens is not None:
            fields["max_new_tokens"] = max_tokens
            fields["echo"] = max_tokens == 0  # openvino_genai's condition for no new token
        fields.setdefault("rng_seed", secrets.randbits(63))
        if body.num_assistant_tokens:
            fields["num_assistant_tokens"] = body.num_assistant_tokens
        try:
            settings = self.requests.client_settings(fields, body.stop_token_ids or (), grammar)
        except (ValueError, RuntimeError) as error:
            if not raised_by_us(error):
                raise
            if grammar is not None and str(error).startswith(grammar.field):
                field = grammar.field.partition(".")[0]
                raise ApiError(400, str(error), field, "invalid_value") from error
            raise self._named(error, body) from error
        if body.logit_bias:
            biases = tuple((int(token), bias) for token, bias in body.logit_bias.items())
            self.check_tokens([token for token, _ in biases], "logit_bias")
            settings = replace(settings, sampling=replace(settings.sampling, logit_bias=biases))
        return replace(settings, num_assistant_tokens=0) if body.num_assistant_tokens == 0 else settings

    def _named(self, error: Exception, body: GenerationBody) -> ApiError:
        """A refusal of the pipeline, under the body's name of the field."""
        message = str(error).replace("set do_sample", "set temperature above 0")
        for field in (*_SAME, *_RENAMED, "temperature", "stop_token_ids", "num_assistant_tokens"):
            if message.startswith(field):
                name = _RENAMED.get(field, field)
                return ApiError(400, name + message.removeprefix(field), name, "invalid_value")
        for name, field in _RENAMED.items():  # openvino_genai's own words
            if name in message and getattr(body, field) is not None:
                return ApiError(400, message.replace(name, field), field, "invalid_value")
        return ApiError(400, message)

    def verify_mode(self, name: str | None) -> tuple[str, VerifyMode]:
        """The mode of verification that a body asks for, among those that the loaded graph can do.

        Raises:
            ApiError: 400.
        """
        own = self.requests.verify
        sparse = sparse_part(own)
        if name is None:
            return mode_name(own), own
        if name == "dense":
            return name, "dense"
        if sparse is None:
            message = f"verify={name!r}: this server was started with --verify dense; leave it out"
            raise ApiError(400, message, "verify")
        if name == mode_name(own):
            return name, own
        return name, CommitVerify(sparse) if name == "commit" else sparse


def mode_name(verify: VerifyMode) -> str:
    """The word for a mode."""
    if isinstance(verify, CommitVerify):
        return "commit"
    return "sparse" if isinstance(verify, SparseVerify) else "dense"


def read_template(path: Path | None) -> str | None:
    """The text of a chat template's file.

    Raises:
        ValueError: it can't be read.
    """
    if path is None:
        return None
    text = read_utf8(f"--chat-template {path}", lambda: path.read_text(encoding="utf-8"))
    if not text.strip():
        raise ValueError(f"--chat-template {path}: the file is empty; give one with a Jinja template")
    return text
