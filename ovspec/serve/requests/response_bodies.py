"""The body of `/v1/responses`, and the chat that it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import MAX_TOP_LOGPROBS, AnswerBody, ChatBody
from ovspec.serve.requests.messages import MAX_MESSAGES, MAX_PARTS, Arguments
from ovspec.serve.requests.strict_body import (
    Flag,
    Off,
    OffExcept,
    OffFalse,
    OffList,
    StrictBody,
    Text,
    TextOr,
    Whole,
    WordOr,
)
from ovspec.serve.requests.tool_fields import MAX_TOOLS, Function, FunctionName, ToolName, restricts_calls


class ResponsePart(StrictBody):
    """A part of a text."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: Text
    annotations: OffList = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class ResponseImage(StrictBody):
    """A picture in a message."""

    type: Literal["input_image"]
    image_url: Text
    detail: Literal["auto"] | None = None
    file_id: Off = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


Parts = Annotated[list[ResponsePart], Field(fail_fast=True, max_length=MAX_PARTS)]
_Part = Annotated[ResponsePart | ResponseImage, Field(discriminator="type")]
_Content = Annotated[list[_Part], Field(fail_fast=True, max_length=MAX_PARTS)]


class ResponseItem(StrictBody):
    """What every item may have; an answer's items are taken back as they are."""

    id: Text | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class ResponseMessage(ResponseItem):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: TextOr[_Content]
    phase: Text | None = None

    @property
    def has_pictures(self) -> bool:
        """Whether any part of it is a picture."""
        return any(isinstance(part, ResponseImage) for part in self.content)


class ResponseCall(ResponseItem):
    """A call of a function, of an earlier answer."""

    type: Literal["function_call"]
    call_id: Text
    name: ToolName
    arguments: Arguments
    caller: Annotated[None, OffExcept({"type": "direct"})] = None
    namespace: Off = None
    async_: OffFalse = Field(None, alias="async")


class ResponseCallOutput(ResponseItem):
    """What a function gave."""

    type: Literal["function_call_output"]
    call_id: Text
    caller: Annotated[None, OffExcept({"type": "direct"})] = None
    output: TextOr[Parts]
    name: ToolName | None = None
    namespace: Off = None


class ResponseReasoning(ResponseItem):
    """Reasoning of an earlier answer."""

    type: Literal["reasoning"]
    summary: Parts | None = None
    content: Parts | None = None
    encrypted_content: Off = None


def _kind(item: object) -> object:
    return item.get("type") or "message" if isinstance(item, dict) else getattr(item, "type", None)


Item = Annotated[
    Annotated[ResponseMessage, Tag("message")]
    | Annotated[ResponseCall, Tag("function_call")]
    | Annotated[ResponseCallOutput, Tag("function_call_output")]
    | Annotated[ResponseReasoning, Tag("reasoning")],
    Discriminator(_kind),
]


class ResponseFunction(Function):
    """A function that the model may ask to call; there are no other tools."""

    type: Literal["function"]
    allowed_callers: Annotated[None, OffExcept(["direct"])] = None
    defer_loading: OffFalse = None
    output_schema: Off = None
    async_: OffFalse = Field(None, alias="async")


class ResponseNamedFunction(FunctionName):
    """The function that is to be called."""

    type: Literal["function"]


class ResponseTextFormat(StrictBody):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: Flag | None = None

    @model_validator(mode="after")
    def _has_what_its_type_has(self) -> ResponseTextFormat:
        if self.described and self.type != "json_schema":
            name = next(iter(self.described))
            raise ValueError(f"{name} is for type json_schema, not {self.type}; leave it out")
        return self

    @property
    def described(self) -> dict[str, Any]:
        """What is given beside the type, by the client's names."""
        return self.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)


class ResponseText(StrictBody):
    """Settings of the answer's text."""

    format: ResponseTextFormat | None = None
    verbosity: Annotated[None, OffExcept("medium")] = None


class ResponseEffort(StrictBody):
    """Settings of reasoning; a summary is made where a model does so, and here none does."""

    effort: Text | None = None
    context: Annotated[None, OffExcept("auto")] = None
    mode: Annotated[None, OffExcept("standard")] = None
    summary: Annotated[None, OffExcept("auto")] = None
    generate_summary: Off = None


class ResponseStreamOptions(StrictBody):
    """What a stream carries beside the answer."""

    include_obfuscation: OffFalse = None


class ResponseBody(AnswerBody):
    """The body of `/v1/responses`. Nothing is kept of an answer."""

    input: TextOr[Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]]
    instructions: Text | None = None
    max_output_tokens: Whole | None = Field(None, ge=1)
    text: ResponseText | None = None
    reasoning: ResponseEffort | None = None
    tools: Annotated[list[ResponseFunction], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: WordOr[Literal["none", "auto", "required"], ResponseNamedFunction] | None = None
    parallel_tool_calls: Flag | None = None
    include: (
        Annotated[
            list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Field(max_length=2)
        ]
        | None
    ) = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    metadata: Annotated[dict[Text, Text], Field(max_length=16)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    special_tokens_in_content: Flag = False

    stream_options: ResponseStreamOptions | None = None
    truncation: Annotated[None, OffExcept("disabled")] = None
    background: OffFalse = None
    background_options: Off = None
    access_programs: Off = None
    image: Off = None
    previous_response_id: Off = None
    conversation: Off = None
    prompt: Off = None
    max_tool_calls: Off = None
    context_management: OffList = None

    @property
    def has_grammar(self) -> bool:
        """As of `AnswerBody`."""
        form = self.text.format if self.text is not None else None
        calls = restricts_calls(self.tools or (), self.parallel_tool_calls, self.tool_choice)
        return calls or (form is not None and form.type != "text")

    @property
    def has_pictures(self) -> bool:
        """As of `AnswerBody`."""
        items = [] if isinstance(self.input, str) else self.input
        return any(isinstance(item, ResponseMessage) and item.has_pictures for item in items)

    @property
    def wants_logprobs(self) -> bool:
        """Whether tokens come with their log probabilities."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    def chat(self) -> ChatBody:
        """The same as a chat.

        Raises:
            ApiError: 400, as of a chat's body, whose field it names; or reasoning that belongs to nothing.
        """
        given = self.model_fields_set & AnswerBody.model_fields.keys() & ChatBody.model_fields.keys()
        fields: dict[str, Any] = {name: getattr(self, name) for name in given}
        choice = self.tool_choice
        if isinstance(choice, ResponseNamedFunction):
            choice = {"type": "function", "function": {"name": choice.name}}  # type: ignore[assignment]
        return ChatBody.of_fields(
            {
                **fields,
                "messages": self._messages(),
                "max_completion_tokens": self.max_output_tokens,
                "response_format": self._response_format(),
                "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
                "tools": [_tool(one) for one in self.tools or ()] or None,
                "tool_choice": choice,
                "parallel_tool_calls": self.parallel_tool_calls,
                "logprobs": self.wants_logprobs,
                "top_logprobs": self.top_logprobs if self.wants_logprobs else None,
                "chat_template_kwargs": self.chat_template_kwargs,
                "special_tokens_in_content": self.special_tokens_in_content,
            }
        )

    def _response_format(self) -> dict[str, Any] | None:
        form = self.text.format if self.text is not None else None
        if form is None:
            return None
        if form.type != "json_schema":
            return {"type": form.type}
        return {"type": form.type, "json_schema": form.described}

    def _messages(self) -> list[dict[str, Any]]:
        """The items as messages: what the assistant wrote between two others is one of them."""
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        thoughts: list[str] = []
        for place, item in enumerate(self.input):
            if isinstance(item, ResponseReasoning):
                thoughts.append(_text(item.content or item.summary or []))
                continue
            if thoughts and not _is_of_assistant(item):
                raise _unfollowed(place - 1)
            thought = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
            thoughts = []
            if isinstance(item, ResponseCallOutput):
                output = {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
                messages.append(output)
            elif isinstance(item, ResponseMessage):
                messages.append({"role": item.role, "content": _content(item.content), **thought})
            else:
                if thought or not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None, **thought})
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
        if thoughts:
            raise _unfollowed(len(self.input) - 1)
        return messages


def _is_of_assistant(item: ResponseItem) -> bool:
    return isinstance(item, ResponseCall) or (isinstance(item, ResponseMessage) and item.role == "assistant")


def _unfollowed(place: int) -> ApiError:
    message = f"input.{place}: no message or call of the assistant's follows this reasoning; leave it out"
    return ApiError(400, message, "input")


def _tool(given: ResponseFunction) -> dict[str, Any]:
    return {
        "type": "function",
        "function": given.model_dump(include=set(Function.model_fields), exclude_none=True),
    }


def _content(content: str | list[ResponsePart | ResponseImage]) -> str | list[dict[str, Any]]:
    """The content of a message as a chat has it."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, ResponsePart)
        else {"type": "image_url", "image_url": {"url": part.image_url}}
        for part in content
    ]


def _text(content: str | list[ResponsePart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
