"""Messages of a chat, as clients send them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ovspec.serve.requests.strict_body import Off, OffList, StrictBody, Text, TextOr
from ovspec.serve.requests.tool_fields import ToolName

MAX_MESSAGES = 4096
MAX_PARTS = 4096


class TextPart(StrictBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text
    cache_control: dict[str, Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class ImageUrl(StrictBody):
    """Where a picture is."""

    url: Text
    detail: Literal["auto"] | None = None


class ImagePart(StrictBody):
    """A picture in a message's content."""

    type: Literal["image_url"]
    image_url: ImageUrl
    cache_control: dict[str, Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _json(value: str) -> str:
    try:
        json.loads(value or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error}); send the arguments as they came") from None
    return value


Arguments = Annotated[Text, AfterValidator(_json)]


class CalledFunction(StrictBody):
    """A function that was called, with its arguments as JSON in a text."""

    name: ToolName
    arguments: Arguments = "{}"


class CalledTool(StrictBody):
    """A call of an earlier answer."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(StrictBody):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOr[Annotated[list[Part], Field(fail_fast=True, max_length=MAX_PARTS)]] | None = None
    type: Literal["message"] | None = None
    name: Text | None = None
    cache_control: dict[str, Any] | None = None
    reasoning_content: Text | None = None
    refusal: Off = None
    annotations: OffList = None
    audio: Off = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=MAX_PARTS)] | None = None
    tool_call_id: Text | None = None
    function_call: Off = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of role {self.role} has no content; give some text")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of role tool has no tool_call_id; say which call it answers")
        if self.pictures and self.role != "user":
            raise ValueError(f"a message of role {self.role} has pictures; send them in one of role user")
        return self

    @property
    def pictures(self) -> list[str]:
        """Addresses of the pictures in the content."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.image_url.url for part in parts if isinstance(part, ImagePart)]

    @property
    def text(self) -> str:
        """The content as text; several parts are lines."""
        return self.shown(iter(()))

    def shown(self, marks: Iterator[str]) -> str:
        """The content as text, with a mark for each picture; parts of text behind one another are lines."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        shown, was_text = "", False
        for part in self.content:
            is_text = isinstance(part, TextPart)
            text = part.text if isinstance(part, TextPart) else next(marks, "")
            shown += ("\n" if was_text and is_text else "") + text
            was_text = is_text
        return shown

    @property
    def templated(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        found: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.text,
        }
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.reasoning_content is not None:
            found["thinking"] = self.reasoning_content  # its name in GPT-OSS's template
        if self.tool_calls:
            found["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.loads(call.function.arguments or "{}"),
                    },
                }
                for call in self.tool_calls
            ]
        return found


def with_short_ids(written: Sequence[dict[str, Any]]) -> None:
    """Give the calls of templated messages the ids that Mistral's templates take: nine letters and digits.

    The same id is always given the same one.
    """
    for message in written:
        if "tool_call_id" in message:
            message["tool_call_id"] = _short(message["tool_call_id"])
        for call in message.get("tool_calls", ()):
            call["id"] = _short(call["id"])


def _short(given: str) -> str:
    if re.fullmatch("[A-Za-z0-9]{9}", given):
        return given
    return base64.b32encode(hashlib.sha256(given.encode()).digest())[:9].decode()


def have_pictures(messages: Sequence[Message]) -> bool:
    """Whether any of these messages has pictures."""
    return any(message.pictures for message in messages)
