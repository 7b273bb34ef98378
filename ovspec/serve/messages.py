"""Messages of a chat, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ovspec.serve.strict_body import Off, OffList, StrictBody, Text

MAX_MESSAGES = 4096
MAX_PARTS = 4096


class TextPart(StrictBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class Message(StrictBody):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]
    name: Off = None
    refusal: Off = None
    annotations: OffList = None
    audio: Off = None
    tool_calls: OffList = None
    tool_call_id: Off = None
    function_call: Off = None

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
