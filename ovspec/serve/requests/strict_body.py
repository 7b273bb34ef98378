"""A JSON object that a client sends, field by field."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from ovspec.serve.requests.api_error import ApiError
from ovspec_models.folder.shown import shown_name

Body = TypeVar("Body", bound="StrictBody")

# Names of ignored fields that a client is told.
MAX_IGNORED = 32
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


class OffExcept:
    """A field of OpenAI's that is not supported, with the values that switch it off."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"enum": [None, *self._values]}

    def _check(self, value: object) -> None:
        if value is not None and not any(value == off and type(value) is type(off) for off in self._values):
            raise ValueError("is not supported; leave it out")


def _whole_characters(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is no valid text ({error.reason}); send whole characters") from None
    return value


def _whole_number(value: object) -> object:
    """JSON does not tell 1.0 from 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!r} is given twice")
    return made


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


Off = Annotated[None, OffExcept()]
OffList = Annotated[None, OffExcept([], {})]
OffFalse = Annotated[None, OffExcept(False)]
Text = Annotated[str, Field(strict=True), AfterValidator(_whole_characters)]
Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole_number)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
# An error is reported for the form that was sent only; places leave names in brackets out.
Listed = TypeVar("Listed")
Word = TypeVar("Word")
Named = TypeVar("Named")
TextOr = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[Listed, Tag("[list]")],
    Discriminator(lambda value: "[list]" if isinstance(value, list) else "[text]"),
]
WordOr = Annotated[
    Annotated[Word, Tag("[word]")] | Annotated[Named, Tag("[object]")],
    Discriminator(lambda value: "[object]" if isinstance(value, (dict, BaseModel)) else "[word]"),
]
# A client is told the first fault only; to collect all of them takes 2 kB for each entry of a list.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


def _describe(schema: dict[str, Any]) -> None:
    """In the description, what may be left out may be null, and bounds have JSON schema's names."""
    for name, entry in schema.get("properties", {}).items():
        options = entry.get("anyOf", ())
        for option in (entry, *options):
            # pydantic leaves its own behind a validator of ours.
            for given in _BOUNDS.keys() & option.keys():
                option[_BOUNDS[given]] = option.pop(given)
        if name not in schema.get("required", ()) and {"type": "null"} not in options and "enum" not in entry:
            shown = {key: entry.pop(key) for key in ("title", "default", "description") if key in entry}
            inner = dict(entry)
            entry.clear()
            entry |= {"anyOf": [*(inner.pop("anyOf", None) or [inner]), {"type": "null"}], **shown}


class StrictBody(BaseModel):
    """A JSON object: null is as good as left out, and unknown fields are refused, or ignored by name."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, protected_namespaces=(), json_schema_extra=_describe
    )
    _ignored: tuple[str, ...] = PrivateAttr(())

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that were ignored, those of a whole body with the objects in it."""
        return self._ignored

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        ignored: dict[str, None] | None = info.context
        known, extra = {}, None
        for name, entry in value.items():
            if name in fields:
                if entry is not None or fields[name].is_required():
                    known[name] = entry
            elif entry is not None:
                extra = extra or name  # of many one is enough, for the same reason
        if extra is None:
            return known
        if ignored is None:
            return {**known, extra: value[extra]}
        for name, entry in value.items():
            if name not in fields and entry is not None and len(ignored) < MAX_IGNORED:
                ignored[shown_name(name)] = None
        return known

    @classmethod
    def parse(cls: type[Body], data: bytes, strict_fields: bool = True) -> Body:
        """Read a body.

        Args:
            strict_fields: whether unknown fields are refused; else `ignored` has them.

        Raises:
            ApiError: 400; it names the first field that is wrong.
        """
        try:
            value = json.loads(data.decode(), object_pairs_hook=_each_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            reason = str(error).partition("; use sys.")[0]  # Python's remedy for an integer of many digits
            raise ApiError(400, f"the body is no JSON ({reason}); send a JSON object in UTF-8") from None
        if not isinstance(value, dict):
            raise ApiError(400, f"the body is {_shown(value)}; send a JSON object")
        return cls.of_fields(value, strict_fields)

    @classmethod
    def of_fields(cls: type[Body], fields: dict[str, Any], strict_fields: bool = True) -> Body:
        """Make a body of its fields; arguments and errors as of `parse`."""
        ignored: dict[str, None] | None = None if strict_fields else {}
        try:
            body = cls.model_validate(fields, context=ignored)
        except ValidationError as error:
            raise _named(error, cls) from None
        body._ignored = tuple(ignored or ())
        return body


# Names of alternatives in the places of faults, which are no fields.
_TYPES = ("str", "list", "input_text", "output_text", "summary_text", "reasoning_text", "input_image")


def _named(error: ValidationError, kind: type[StrictBody]) -> ApiError:
    """The first fault of a body, by the name of its field."""
    faults = error.errors(include_url=False)
    # What an object of another type lacks is no news.
    beside = (*faults[0]["loc"][:-1], "type")
    fault = next((one for one in faults if one["loc"] == beside), faults[0])
    # A list of alternatives (text or tokens) names the alternative in the place; the user knows the field.
    field = shown_name(fault["loc"][0]) if fault["loc"] else "body"
    place = ".".join(shown_name(part) for part in fault["loc"] if not _names_a_type(part))
    message = str(fault["msg"]).removeprefix("Value error, ")
    shown = _shown(fault["input"])
    if fault["type"] == "extra_forbidden":
        known = (
            ", ".join(sorted(kind.model_fields)) if len(fault["loc"]) == 1 else "those of OpenAI's interface"
        )
        return ApiError(400, f"{place}: there is no such field; known are {known}", field, "unknown_field")
    if fault["type"] == "missing":
        return ApiError(400, f"{place}: is missing; give it", field, "missing_field")
    if (expected := fault.get("ctx", {}).get("expected_tags")) is not None:  # of objects by their types
        place, shown = f"{place}.type", _shown(fault["input"]["type"])
    elif fault["type"] == "literal_error" and fault["loc"][-1] == "type":
        expected = fault["ctx"]["expected"]
    if expected is not None:
        message = f"is not supported; possible: {expected}"
    if isinstance(most := fault.get("ctx", {}).get("le"), int):
        message = f"input should be less than or equal to {most}"  # pydantic rounds it to a float
    if fault["type"] == "union_tag_not_found":
        message = "expected an object with a type"
    if fault["type"] == "model_type":
        message = "expected an object"
    return ApiError(400, f"{place}={shown}: {message[:1].lower()}{message[1:]}", field, "invalid_value")


def _shown(value: object) -> str:
    """A value of JSON in short."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    shown = json.dumps(value[:80] if isinstance(value, str) else value, default=str)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _names_a_type(part: int | str) -> bool:
    return (isinstance(part, str) and any(mark in part for mark in "[]-")) or part in _TYPES
