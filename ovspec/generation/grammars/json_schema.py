"""JSON schemas: those that no finite text satisfies, and what stands between the parts of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ovspec.errors import InvalidValueError
from ovspec_models.folder.shown import shown

# At parts of a schema: one whose references lead to many others again and again is followed no further, and
# refused by nobody.
_MOST_LOOKS = 100_000


# llguidance computes with floating-point numbers, which larger whole ones are not; lengths have 32 bits.
_EXACT = 2**53
# A state of llguidance's for each remainder: 0.1 s. Two billions take all memory.
_MOST_REMAINDERS = 10_000
_MOST = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _EXACT),
    **dict.fromkeys(("minLength", "maxLength"), 2**32 - 1),
}
# Bounds that say in many schemas that a whole number has 64 bits, and what llguidance is given for them: with
# -2**63 it fails, so answers end at the next number that it has.
_INT64 = {"minimum": (-(2**63), -(2**63) + 1024), "maximum": (2**63 - 1, 2**63 - 1)}

_SCHEMAS_BY_NAME = {"properties", "$defs", "definitions"}
_WITH_SCHEMAS = {"items", "prefixItems", "anyOf", "oneOf", "additionalProperties"}
_OPEN = {
    *("additionalProperties", "unevaluatedProperties", "patternProperties"),
    *("allOf", "anyOf", "oneOf", "$ref"),
}


def schema_of(schema: object, field: str) -> Mapping[str, Any]:
    """A JSON schema, given as text or as what it is, as an object.

    Raises:
        InvalidValueError: it is none.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidValueError(f"{field}: it is no JSON ({error}); give a JSON schema") from None
    if isinstance(schema, bool):
        return {} if schema else {"enum": []}
    if not isinstance(schema, Mapping):
        raise InvalidValueError(f"{field}: expected a JSON schema, which is an object")
    return schema


def closed_schema(schema: object, field: str) -> Mapping[str, Any]:
    """The schema, its objects without properties that it does not name, as openvino_genai's answers are.

    What a schema says of other properties itself stays, and so do objects that several schemas describe.

    Raises:
        InvalidValueError: as `schema_of`.
    """
    try:
        found: Mapping[str, Any] = _closed(schema_of(schema, field))
    except RecursionError:
        raise InvalidValueError(f"{field}: the schema is nested too deeply; make it flatter") from None
    return found


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _closed(one) if name in _WITH_SCHEMAS else one for name, one in schema.items()}
    for name in _SCHEMAS_BY_NAME & found.keys():
        if isinstance(found[name], Mapping):
            found[name] = {key: _closed(one) for key, one in found[name].items()}
    if "properties" in found and not _OPEN & found.keys():
        found["additionalProperties"] = False
    return found


def schema_text(schema: object, field: str, spaces: str | None = None) -> str:
    """A JSON schema as text, with what stands between the parts of JSON.

    Raises:
        InvalidValueError: it is none, no text of any length satisfies it, or it has too large a number.
    """
    schema = schema_of(schema, field)
    try:
        _check_ends(schema, field)
        return json.dumps({**_with_numbers(schema, field), "x-guidance": _spacing(spaces)})
    except RecursionError:
        raise InvalidValueError(f"{field}: the schema is nested too deeply; make it flatter") from None


def _spacing(pattern: str | None) -> dict[str, Any]:
    """llguidance's options for the space between the parts of JSON.

    One form lets every key be drafted without a model, and a model that is unsure can't write spaces up to
    its last token.

    Args:
        pattern: of what may stand there; `None`: one space behind a comma or a colon.
    """
    if pattern is not None:
        return {"whitespace_pattern": pattern}
    return {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _check_ends(schema: Mapping[str, Any], field: str) -> None:
    """Refuse a schema whose references require itself without end.

    What llguidance finds by itself, contradicting keywords above all, is left to it.
    """
    if not _Endings(schema).ends(schema):
        raise InvalidValueError(
            f"{field}: no JSON satisfies the schema: a reference requires itself without end; make the "
            "property that refers back optional, or allow null"
        )


def _with_numbers(part: Any, field: str) -> Any:
    """A part of a schema, without numbers that llguidance rounds; a bound of -2**63 ends its process."""
    if isinstance(part, list):
        return [_with_numbers(one, field) for one in part]
    if not isinstance(part, Mapping):
        return part
    found = dict(part)
    for name, value in part.items():
        what = f"{field}: {name}={shown(value)}"
        if part.get("type") == "integer" and name in _INT64 and value == _INT64[name][0]:
            found[name] = _INT64[name][1]
        elif name in _MOST and isinstance(value, (int, float)):
            _check_number(value, _MOST[name], what)
        elif name == "multipleOf" and isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_multiple(value, what)
        elif name in ("const", "enum"):
            _check_values(value, f"{field}: {name}")
        else:
            found[name] = _with_numbers(value, field)
    return found


def _check_values(value: object, what: str) -> None:
    """The same of whole numbers in an answer itself."""
    if isinstance(value, (Mapping, list)):
        for one in value.values() if isinstance(value, Mapping) else value:
            _check_values(one, what)
    elif isinstance(value, int):
        _check_number(value, _EXACT, f"{what} has {shown(value)}")


def _check_multiple(value: float, what: str) -> None:
    number = Decimal(str(float(value)) if 0 < value < _EXACT else 0).normalize()
    places = max(0, -int(number.as_tuple().exponent))
    if not 0 < int(number.scaleb(places)) <= _MOST_REMAINDERS:
        raise InvalidValueError(
            f"{what}: expected a number above 0 whose digits are a number of {_MOST_REMAINDERS} at most; "
            "take one with fewer, or leave it out"
        )


def _check_number(value: float, most: int, what: str) -> None:
    if abs(value) > most:
        raise InvalidValueError(f"{what}: expected a number of {most} at most; give a smaller one, or a text")


class _Endings:
    """Which references of a schema lead to something that ends, as far as is known."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._open: set[str] = set()
        self._ending: set[str] = set()
        self._looked = 0

    def ends(self, schema: object) -> bool:
        """Whether some text satisfies a part of the schema, as far as references decide it."""
        self._looked += 1
        if not isinstance(schema, Mapping) or self._looked > _MOST_LOOKS:
            return True
        if "$id" in schema and schema is not self._root:
            return True  # its references lead elsewhere
        reference = schema.get("$ref")
        if isinstance(reference, str) and not self._leads_to_an_end(reference):
            return False
        for name in ("anyOf", "oneOf"):
            options = schema.get(name)
            if isinstance(options, list) and options and not any(self.ends(one) for one in options):
                return False
        needed = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        if schema.get("type") == "object":
            properties, required = schema.get("properties"), schema.get("required")
            if isinstance(properties, Mapping) and isinstance(required, list):
                needed += [
                    properties[name] for name in required if isinstance(name, str) and name in properties
                ]
        if schema.get("type") == "array" and isinstance(least := schema.get("minItems"), int) and least > 0:
            prefix = schema.get("prefixItems")
            prefix = prefix if isinstance(prefix, list) else []
            needed += prefix[:least] + (
                [schema["items"]] if len(prefix) < least and "items" in schema else []
            )
        return all(self.ends(one) for one in needed)

    def _leads_to_an_end(self, reference: str) -> bool:
        if reference in self._ending or not re.match(r"#(/|\Z)", reference):
            return True  # names, which llguidance looks up
        if reference in self._open:
            return False
        part: Any = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(part, Mapping) or name not in part:
                return True  # llguidance says what is wrong with it
            part = part[name]
        self._open.add(reference)
        ends = self.ends(part)
        self._open.discard(reference)
        if ends:
            self._ending.add(reference)
        return ends
