"""`--json-schema`, `--regex`, `--grammar`: the form of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from openvino_genai import StructuredOutputConfig

from ovspec.cli.options.forms import PATH, typed_option
from ovspec.cli.options.help import Command
from ovspec_models.folder.jsonl import read_utf8

_OPTIONS = {"json_schema": "--json-schema", "regex": "--regex", "grammar": "--grammar"}


def structure_options(command: Command) -> Command:
    """Add the options."""
    for add in (
        typed_option("--grammar", PATH, "File with a grammar in EBNF (first rule: root) of the answer."),
        click.option("--regex", metavar="PATTERN", help="Pattern that the whole answer matches."),
        typed_option("--json-schema", PATH, "File with a JSON schema; the answer is JSON that it allows."),
    ):
        command = add(command)
    return command


def structure_from(options: dict[str, Any]) -> StructuredOutputConfig | None:
    """Take the options out: the form that they ask for, if they do.

    Raises:
        ValueError: several are given, or a file that can't be read, or is no text.
    """
    given = {name: value for name in _OPTIONS if (value := options.pop(name)) is not None}
    if len(given) > 1:
        raise ValueError(
            f"{' and '.join(_OPTIONS[name] for name in given)} exclude each other: give one form"
        )
    texts = {name: value if name == "regex" else _text(name, value) for name, value in given.items()}
    return StructuredOutputConfig(**texts) if texts else None


def _text(name: str, file: Path) -> str:
    given = f"{_OPTIONS[name]} {file}"
    text = read_utf8(given, lambda: file.read_text(encoding="utf-8"))
    if not text.strip():
        raise ValueError(f"{given} is empty; give a file that says what an answer looks like")
    return text
