"""A user's texts, one JSON value per line."""

from __future__ import annotations

import json
from pathlib import Path

TEXT_KEYS = ("text", "prompt", "question")


def read_texts(path: Path, option: str = "--data") -> list[str]:
    """Texts of a JSONL file: every line is a string, or an object with `text`, `prompt` or `question`.

    Args:
        option: what it was given for, for messages.

    Raises:
        ValueError: the file can't be read, a line is neither, or there is no text at all; it names the line.
    """
    try:
        lines = lines_of(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}; give a file that can be read") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{option} {path} is not UTF-8 ({error}); convert it") from error
    texts = [_text(f"{option} {path}", number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise ValueError(f'{option} {path} holds no text; write one JSON object per line: {{"text": "..."}}')
    return texts


def lines_of(data: bytes) -> list[str]:
    """Lines of UTF-8 text. str.splitlines would cut a JSON value at U+2028 and similar characters.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return data.decode("utf-8").split("\n")


def _text(where: str, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # too many digits, or too deep
        raise ValueError(f"{where}: line {number} is no JSON ({error}); correct or remove it") from None
    if isinstance(value, dict):
        value = next((value[key] for key in TEXT_KEYS if key in value), None)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{where}: line {number} holds no text; expected a string, or an object with one of "
            f"{', '.join(TEXT_KEYS)}"
        )
    return value
