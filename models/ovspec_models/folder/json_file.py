"""Files with one JSON object, from anywhere: read whole, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

# Nested values take up to a hundred times as much memory as the file.
_MOST_BYTES = 16 << 20


def are_names(value: object) -> TypeGuard[list[str]]:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def read_json(path: Path, remedy: str, most: int = _MOST_BYTES) -> dict[str, Any]:
    """The object in a file.

    Args:
        remedy: what the user can do, for messages.
        most: bytes that the file may have.

    Raises:
        ValueError: it can't be read, is larger, no JSON, nested too deeply, or no object; it names the file.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no file; {remedy}")
        if (size := path.stat().st_size) > most:
            raise ValueError(f"{path} has {size} bytes, expected at most {most}; {remedy}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); {remedy}") from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # too many digits, or too deep
        raise ValueError(f"{path}: not valid JSON ({error}); {remedy}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds {type(found).__name__}, expected a JSON object; {remedy}")
    return found
