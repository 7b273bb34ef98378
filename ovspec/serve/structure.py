"""What a body says about the form of its answer, as a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ovspec.errors import InvalidValueError
from ovspec.generation.grammar import Grammar
from ovspec.serve.api_error import ApiError
from ovspec.serve.strict_body import Flag, StrictBody, Text

if TYPE_CHECKING:
    from ovspec.serve.bodies import GenerationBody


class JsonSchemaFormat(StrictBody):
    """A JSON schema with its name."""

    name: Text = "answer"
    description: Text | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: Flag | None = None


class ResponseFormat(StrictBody):
    """OpenAI's form of an answer, and vLLM's structural tags."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
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


def grammar_of(body: GenerationBody) -> Grammar | None:
    """The grammar of a body's answers; `None`: they are free.

    Raises:
        ApiError: 400, several forms are asked for, or one can't be followed.
    """
    found: list[Grammar | None] = []
    try:
        if body.response_format is not None:
            found.append(_of_response_format(body.response_format))
        if body.structured_outputs is not None:
            found.append(_of_structured_outputs(body.structured_outputs, "structured_outputs."))
        guided = StructuredOutputs(
            json=body.guided_json,
            regex=body.guided_regex,
            choice=body.guided_choice,
            grammar=body.guided_grammar,
            whitespace_pattern=body.guided_whitespace_pattern,
        )
        if guided.model_fields_set and guided != StructuredOutputs():
            found.append(_of_structured_outputs(guided, "guided_"))
    except InvalidValueError as error:
        field = str(error).partition(":")[0].partition(".")[0]
        raise ApiError(400, str(error), field, "invalid_value") from error
    asked = [grammar for grammar in found if grammar is not None]
    if len(asked) > 1:
        fields = [grammar.field.partition(".")[0] for grammar in asked]
        raise ApiError(400, f"{fields[1]}: {fields[0]} is given too; leave one of them out", fields[1])
    return asked[0] if asked else None


def _of_response_format(given: ResponseFormat) -> Grammar | None:
    if given.type == "text":
        return None
    if given.type == "json_object":
        return Grammar.of_json_schema({"type": "object"}, "response_format")
    if given.type == "json_schema":
        schema = given.json_schema
        if schema is None or schema.schema_ is None:
            raise InvalidValueError("response_format.json_schema.schema: is missing; give a JSON schema")
        return Grammar.of_json_schema(schema.schema_, "response_format.json_schema.schema")
    tag = given.model_dump(exclude_none=True)
    return Grammar.of_tag(tag, "response_format")


def _of_structured_outputs(given: StructuredOutputs, prefix: str) -> Grammar | None:
    makers = {
        "json": (given.json_, Grammar.of_json_schema),
        "regex": (given.regex, Grammar.of_regex),
        "choice": (given.choice, Grammar.of_choice),
        "grammar": (given.grammar, Grammar.of_ebnf),
        "structural_tag": (given.structural_tag, Grammar.of_tag),
        "json_object": ({"type": "object"} if given.json_object else None, Grammar.of_json_schema),
    }
    asked = [name for name, (value, _) in makers.items() if value is not None]
    field = prefix.rstrip("._")
    if len(asked) != 1:
        what = " and ".join(asked) or "none of them"
        raise InvalidValueError(f"{field}: {what} given; expected one of {', '.join(makers)}")
    value, make = makers[asked[0]]
    if given.whitespace_pattern is None:
        return make(value, prefix + asked[0])
    if "json" not in asked[0]:
        raise InvalidValueError(f"{prefix}whitespace_pattern: is for JSON; leave it out with {asked[0]}")
    return Grammar.of_json_schema(value, prefix + asked[0], given.whitespace_pattern)
