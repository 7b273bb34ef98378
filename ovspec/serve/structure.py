"""What a body says about the form of its answer, as a grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ovspec.errors import InvalidValueError
from ovspec.generation.grammars.grammar import Grammar
from ovspec.serve.requests.answer_forms import ResponseFormat, StructuredOutputs
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import GenerationBody

# Fields of `response_format`, and the type that has them.
_KINDS = {
    "schema_": "json_object",
    "json_schema": "json_schema",
    "format": "structural_tag",
    "structures": "structural_tag",
    "triggers": "structural_tag",
}


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
        names = ("json", "regex", "choice", "grammar", "whitespace_pattern")
        guided = {name: value for name in names if (value := getattr(body, f"guided_{name}")) is not None}
        if guided:
            found.append(_of_structured_outputs(StructuredOutputs(**guided), "guided_"))
    except InvalidValueError as error:
        field = str(error).partition(":")[0].partition(".")[0]
        raise ApiError(400, str(error), field, "invalid_value") from error
    asked = [grammar for grammar in found if grammar is not None]
    if len(asked) > 1:
        fields = [grammar.field.partition(".")[0] for grammar in asked]
        raise ApiError(400, f"{fields[1]}: {fields[0]} is given too; leave one of them out", fields[1])
    return asked[0] if asked else None


def _of_response_format(given: ResponseFormat) -> Grammar | None:
    for name, kind in _KINDS.items():
        if kind != given.type and getattr(given, name) is not None:
            raise InvalidValueError(
                f"response_format.{name.rstrip('_')}: is for type {kind}, not {given.type}; leave it out"
            )
    if given.type == "text":
        return None
    if given.type == "json_object":
        if given.schema_ is None:
            return Grammar.of_json_schema({"type": "object"}, "response_format")
        return Grammar.of_json_schema(given.schema_, "response_format.schema")
    if given.type == "json_schema":
        schema = given.json_schema
        if schema is None or schema.schema_ is None:
            raise InvalidValueError("response_format.json_schema.schema: is missing; give a JSON schema")
        return Grammar.of_json_schema(schema.schema_, "response_format.json_schema.schema")
    parts = {name: value for name in _KINDS if (value := getattr(given, name)) is not None}
    return Grammar.of_tag({"type": given.type, **parts}, "response_format")


def _of_structured_outputs(given: StructuredOutputs, prefix: str) -> Grammar | None:
    makers: dict[str, tuple[Any, Callable[[Any, str], Grammar]]] = {
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
