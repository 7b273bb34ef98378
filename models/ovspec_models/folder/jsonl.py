"""A user's texts, one JSON value per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ovspec_models.folder.shown import cut

_Taken = TypeVar("_Taken")
TEXT_KEYS = ("text", "prompt", "question")
_PAIR = ("prompt", "completion")
# Where str.splitlines cuts beside the characters that JSON escapes itself.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_EXPECTED_PAIR = "expected a text as its prompt and one as its completion"


def read_texts(path: Path, option: str = "--data") -> list[str]:
    """Texts of a JSONL file: every line is a string, or an object with `text`, `prompt` or `question`.

    Args:
        option: what it was given for, for messages.

    Raises:
        ValueError: the file can't be read, a line is neither, or there is no text at all; it names the line.
    """
    return [text for _, text in numbered_texts(f"{option} {path}", path.read_bytes, TEXT_KEYS)]


def read_completions(path: Path, option: str = "--data") -> list[tuple[str, str]]:
    """As `read_texts`, each with a prompt before it: that of an object with `completion`, or none.

    Raises:
        ValueError: as `read_texts`.
    """

    def pair(place: str, value: Any) -> tuple[str, str]:
        if isinstance(value, dict) and "completion" in value:
            prompt, completion = (_text(place, value, (key,), _EXPECTED_PAIR) for key in _PAIR)
            return prompt, completion
        return "", _text(place, value, TEXT_KEYS, _expected(TEXT_KEYS))

    return [found for _, found in _filled(f"{option} {path}", path.read_bytes, TEXT_KEYS, pair)]


def numbered_texts(what: str, read: Callable[[], bytes], keys: Sequence[str]) -> list[tuple[int, str]]:
    """The text of each line, a JSON string or an object with one of the keys, and its number from 1.

    Raises:
        ValueError: as `json_lines`, a line holds no text, or there is no line; it names the line.
    """
    return _filled(what, read, keys, lambda place, value: _text(place, value, keys, _expected(keys)))


def _filled(
    what: str, read: Callable[[], bytes], keys: Sequence[str], take: Callable[[str, Any], _Taken]
) -> list[tuple[int, _Taken]]:
    """What `take` makes of each line's place and value, with the line's number; there is one at least."""
    found = [(number, take(f"{what}: line {number}", value)) for number, value in json_lines(what, read)]
    if not found:
        raise ValueError(f"{what} holds no text; {_expected(keys)} in every line")
    return found


def _expected(keys: Sequence[str]) -> str:
    return f"expected a JSON string, or an object with a text as its {' or '.join(map(json.dumps, keys))}"


def read_utf8(what: str, read: Callable[[], str]) -> str:
    """What `read` returns; `what` is read, for messages.

    Raises:
        ValueError: it can't be read, or is not UTF-8.
    """
    try:
        return read()
    except OSError as error:
        raise ValueError(f"{what}: {error.strerror}; give a file that can be read") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not UTF-8 ({error}); convert it") from error


def check_text(place: str, text: str) -> None:
    """Refuse a text with half a character, as "\\ud800" in JSON is; `place` is named.

    Raises:
        ValueError: it has one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place} is no valid text ({error.reason}); correct its escapes") from None


def numbered_lines(what: str, read: Callable[[], str]) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1; as `read_utf8`.

    str.splitlines would cut a JSON value at U+2028 and similar characters.
    """
    lines = enumerate(read_utf8(what, read).split("\n"), 1)
    return [(number, line) for number, line in lines if line.strip()]


def json_line(text: str) -> str:
    """JSON without indents as one line for every reader; many cut at U+2028 and similar characters."""
    return text if text.isascii() else text.translate(_LINE_ENDS)


def json_lines(what: str, read: Callable[[], bytes]) -> list[tuple[int, Any]]:
    """As `numbered_lines`, the value of each line; what `read` gives may begin with a byte order mark.

    Raises:
        ValueError: as `read_utf8`, or a line is no JSON; it names the line.
    """
    return [
        (number, _value(f"{what}: line {number}", line))
        for number, line in numbered_lines(what, lambda: read().decode("utf-8-sig"))
    ]


def _value(place: str, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # too many digits, or too deep
        raise ValueError(f"{place} is no JSON ({error}); correct or remove it") from None


def _text(place: str, value: Any, keys: Sequence[str], expected: str) -> str:
    found = next((value[key] for key in keys if key in value), None) if isinstance(value, dict) else value
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"{place} holds no text: {cut(json.dumps(value))}; {expected}")
    check_text(place, found)
    return found
