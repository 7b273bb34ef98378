"""The answer of `/v1/responses` as a schema, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from ovspec.serve.output.answer_schemas import Answer, CachedTokens, ContentLogprob, Metrics


class ResponsePartText(Answer):
    """A message's text."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ContentLogprob]


class ResponseReasoningText(Answer):
    """The text of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class _Item(Answer):
    id: str
    status: Literal["in_progress", "completed", "incomplete"]


class ResponseMessageItem(_Item):
    """A message."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[ResponsePartText]


class ResponseReasoningItem(_Item):
    """Reasoning before a message or a call."""

    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ResponseReasoningText]


class ResponseCallItem(_Item):
    """A function that the model asks to call."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResponseCachedTokens(CachedTokens):
    """Tokens of the prompt whose keys and values were there already."""

    cache_write_tokens: int


class ReasoningTokens(Answer):
    """Tokens of reasoning."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: ResponseCachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteDetails(Answer):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(Answer):
    """The answer of `/v1/responses`; what its body said stands in it too."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    output: list[ResponseMessageItem | ResponseReasoningItem | ResponseCallItem]
    usage: ResponseUsage
    metrics: Metrics
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    service_tier: str
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, str]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: str
    user: str | None
