"""Prompts of an evaluation: a JSONL file with one prompt per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

EXPECTED = 'expected a JSON string, or an object with a text as its "prompt"'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt and its line in the file, from 1."""

    line: int
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSONL file: a line is a JSON string, or an object whose `prompt` counts; it may be blank."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"--prompts {path}: {error.strerror}; give a JSONL file that can be read") from error
    # str.splitlines would split a prompt at U+2028 and similar characters.
    lines = [_decoded(path, number, line) for number, line in enumerate(content.split(b"\n"), 1)]
    prompts = [
        Prompt(number, _parsed(path, number, line)) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise ValueError(f"--prompts {path}: the file holds no prompt; {EXPECTED} in every line")
    return prompts


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--prompts {path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}); convert it"
        ) from error


def _parsed(path: Path, number: int, line: str) -> str:
    place = f"--prompts {path}, line {number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error}); {EXPECTED}") from error
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
