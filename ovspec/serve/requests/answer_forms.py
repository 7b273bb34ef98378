"""Fields of bodies that say what form an answer has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ovspec.serve.requests.strict_body import Flag, StrictBody, Text


class JsonSchemaFormat(StrictBody):
    """A JSON schema with its name."""

    name: Text = "answer"
    description: Text | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: Flag | None = None


class ResponseFormat(StrictBody):
    """OpenAI's form of an answer, vLLM's structural tags, and llama.cpp's schema of a `json_object`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[Text] | None = None


class StructuredOutputs(StrictBody):
    """vLLM's form of an answer: one of the first six, and what stands between the parts of JSON."""

    json_: dict[str, Any] | Text | None = Field(None, alias="json")
    regex: Text | None = None
    choice: list[Text] | None = None
    grammar: Text | None = None
    json_object: Flag | None = None
    structural_tag: dict[str, Any] | Text | None = None
    whitespace_pattern: Text | None = None
