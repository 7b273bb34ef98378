"""Prompts of an evaluation: a JSONL file with one prompt per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec_models.jsonl import json_lines

EXPECTED = 'expected a JSON string, or an object with a text as its "prompt"'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt and its line in the file, from 1."""

    line: int
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSONL file: a line is a JSON string, or an object whose `prompt` counts; it may be blank."""
    where = f"--prompts {path}"
    prompts = [
        Prompt(number, _text(f"{where}, line {number}", value))
        for number, value in json_lines(where, path.read_bytes)
    ]
    if not prompts:
        raise ValueError(f"{where}: the file holds no prompt; {EXPECTED} in every line")
    return prompts


def _text(place: str, value: Any) -> str:
    if isinstance(value, dict):
        if "prompt" not in value:
            raise ValueError(f'{place}: the object has no "prompt" ({_keys(value)}); {EXPECTED}')
        value = value["prompt"]
    if not isinstance(value, str):
        raise ValueError(f"{place}: the prompt is {_json_type(value)}; {EXPECTED}")
    text: str = value
    if not text.strip():
        raise ValueError(f"{place}: the prompt is empty; give it text or remove the line")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: the prompt is not valid text ({error.reason}); correct its escapes"
        ) from error
    return text


def _keys(value: dict[str, object]) -> str:
    return f"it has {', '.join(map(repr, value))}" if value else "it is empty"


def _json_type(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, dict)):
        return "an array" if isinstance(value, list) else "an object"
    return "a number"
