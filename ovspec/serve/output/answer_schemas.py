"""The answers of the server as schemas, for its OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


def _leave_out_null(schema: dict[str, Any]) -> None:
    """Fields with a default are there or not, but never null."""
    for entry in schema["properties"].values():
        if "default" in entry:
            entry.pop("default")
            entry |= entry.pop("anyOf")[0]


class Answer(BaseModel):
    """An object of an answer."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_leave_out_null, protected_namespaces=())


class ErrorBody(Answer):
    """What was wrong: value, expectation and remedy."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """OpenAI's error object."""

    error: ErrorBody


class CachedTokens(Answer):
    """Tokens of the prompt whose keys and values were there already."""

    cached_tokens: int


class Usage(Answer):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class SpeculativeDecoding(Answer):
    """What was drafted for a request, with vLLM's names."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(Answer):
    """What was drafted, read and promised for a request."""

    speculative_decoding: SpeculativeDecoding
    attention_density: float
    prefill_density: float
    is_lossy: bool
    verify: str


class TokenOrigin(Answer):
    """A token, and who wrote it."""

    text: str
    origin: Literal["draft", "target", "corrected"]


class CompletionLogprobs(Answer):
    """Log probabilities of a completion, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(Answer):
    """A token that might stand at a place of the prompt, with vLLM's names."""

    logprob: float
    rank: int
    decoded_token: str


class _Choice(Answer):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_origins: list[TokenOrigin] | None = None


class CompletionChoice(_Choice):
    """One answer to a prompt."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class _Completion(Answer):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    metrics: Metrics


class Completion(_Completion):
    """The answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class TokenLogprob(Answer):
    """A token with its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    """A token of an answer, and those that might have stood there."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Answer):
    """Log probabilities of a message."""

    content: list[ContentLogprob]
    refusal: None


class CallOfFunction(Answer):
    """A function that the model asks to call."""

    name: str
    arguments: str


class CallOfTool(Answer):
    """A tool that the model asks to call."""

    id: str
    type: Literal["function"]
    function: CallOfFunction


class AnswerMessage(Answer):
    """The message of an answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[CallOfTool] | None = None


class ChatChoice(_Choice):
    """One answer to a chat."""

    message: AnswerMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(_Completion):
    """The answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class ServedModelEntry(Answer):
    """The served model, or an adapter beside it, whose `parent` it is."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    verify: str
    drafts: bool
    has_chat_template: bool
    reads_pictures: bool


class ModelList(Answer):
    """The answer of `/v1/models`."""

    object: Literal["list"]
    data: list[ServedModelEntry]


class Tokens(Answer):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]


class DecodedText(Answer):
    """The answer of `/detokenize`."""

    prompt: str


class Health(Answer):
    """The answer of `/health`."""

    status: Literal["ok"]


class Version(Answer):
    """The answer of `/version`."""

    version: str
