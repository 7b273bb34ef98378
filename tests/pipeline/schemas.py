"""Random JSON schemas of short answers, and what satisfies them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

_WORDS = ("red", 'a "b"', "größe", "two words", "x", "")
_PATTERNS = ("^[a-z]{2,5}$", "^(?:yes|no)$", "^[0-9]{3}-[A-F]+$")


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    kinds = ["integer", "number", "boolean", "null", "enum", "string", "pattern", "const"]
    kind = rng.choice([*kinds, *(["object", "object", "array", "anyOf"] if depth else [])])
    if kind == "integer":
        least = rng.randint(-50, 50)
        return {"type": kind, "minimum": least, "maximum": least + rng.randint(0, 200)}
    if kind == "number":
        return {"type": kind, "minimum": 0, "exclusiveMaximum": rng.choice([1, 2.5, 100])}
    if kind == "enum":
        return {"enum": rng.sample([*_WORDS, 1, True, None, 2.5], rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice([*_WORDS, 7])}
    if kind == "string":
        return {"type": kind, "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 8)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(_PATTERNS), "maxLength": 7}
    if kind == "array":
        least = rng.randint(0, 2)
        items = random_schema(rng, depth - 1)
        return {"type": kind, "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if kind == "anyOf":
        return {kind: [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "object":
        return random_object(rng, depth)
    return {"type": kind}


def random_object(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    names = rng.sample(["name", "id", "größe", "is_ok", "list", "a b"], rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def satisfies(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether JSON is as a random schema says."""
    if "anyOf" in schema:
        return any(satisfies(value, one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return any(
            value == one and type(value) is type(one) for one in schema.get("enum", [schema.get("const")])
        )
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(known)
            and all(satisfies(entry, known[name]) for name, entry in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(satisfies(entry, schema["items"]) for entry in value)
        )
    if kind == "string":
        return (
            isinstance(value, str)
            and schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if kind in ("integer", "number"):
        of = (int,) if kind == "integer" else (int, float)
        below = schema.get("exclusiveMaximum", float("inf"))
        most = schema.get("maximum", below)
        return type(value) in of and schema["minimum"] <= value <= most and value < below
    return value is None if kind == "null" else isinstance(value, bool)
