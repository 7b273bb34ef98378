"""The JSON schema of a tool's arguments, as a field of a body.

Clients send schemas of megabytes and of any depth. This takes time in proportion to the length and does not
recurse; validators of JSON schemas promise neither.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from ovspec_models.folder.shown import shown_name

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# Keywords that hold a schema, a list of them, and schemas by name.
_ONE = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames"),
    *("then", "unevaluatedItems", "unevaluatedProperties"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_TEXTS = ("$ref", "description", "format", "pattern", "title")
_NUMBERS = ("maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "multipleOf")


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that is one; whether a grammar can follow it is not asked.

    Raises:
        ValueError: it is none.
    """
    if "type" in schema and "object" not in _listed(schema["type"]):
        raise ValueError("is no JSON schema of an object, which a tool's arguments are; give type object")
    left: list[tuple[str, Any]] = [("", schema)]
    while left:
        place, one = left.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise _no_schema(place, one, "an object, true or false")
        for keyword, value in one.items():
            inner = f"{place}.{keyword}".removeprefix(".")
            if (wanted := _wanted(keyword, value)) is not None:
                raise _no_schema(inner, value, wanted)
            if keyword in _BY_NAME:
                left += [(f"{inner}.{name}", each) for name, each in value.items()]
            elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
                left += [(f"{inner}.{index}", each) for index, each in enumerate(value)]
            elif keyword in _ONE:
                left.append((inner, value))
    return schema


def _wanted(keyword: str, value: object) -> str | None:
    """What the value of a keyword has to be; `None`: what it is."""
    if keyword == "type":
        named = _listed(value)
        return None if named and all(name in _TYPES for name in named) else f"one of {', '.join(_TYPES)}"
    if keyword in _BY_NAME:
        return None if isinstance(value, dict) else "an object"
    if keyword == "enum" or keyword in _LISTS:
        return None if isinstance(value, list) else "a list"
    if keyword == "required":
        texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return None if texts else "a list of names"
    if keyword in _TEXTS:
        return None if isinstance(value, str) else "text"
    if keyword in _NUMBERS:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return None if is_number else "a number"
    return None


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _no_schema(place: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"is no JSON schema: {shown_name(place)}={str(value)[:40]!r}; expected {wanted}")


ArgumentSchema = Annotated[dict[str, Any], AfterValidator(_checked)]
