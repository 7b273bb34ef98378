"""Prompts of an evaluation: a JSONL file with one prompt per line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ovspec_models.folder.jsonl import numbered_texts


class Prompt(NamedTuple):
    """One prompt and its line in the file, from 1."""

    line: int
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSONL file: a line is a JSON string, or an object whose `prompt` counts; it may be blank."""
    return [Prompt(*found) for found in numbered_texts(f"--prompts {path}", path.read_bytes, ("prompt",))]
