"""What the reader of prompt files takes, and how it refuses the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ovspec.eval import Prompt, read_prompts


def test_strings_and_objects_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = ['"Once upon a time"', "", json.dumps({"id": 7, "prompt": "caf\u00e9"}), "  ", '"one\u2028line"']
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read_prompts(path) == [
        Prompt(1, "Once upon a time"),
        Prompt(3, "caf\u00e9"),
        Prompt(5, "one\u2028line"),
    ]


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", 'holds no text; expected a JSON string, or an object with a text as its "prompt"'),
    "blank": (b"\n \n\n", "holds no text; expected"),
    "not JSON": (b'"fine"\nOnce upon a time\n', "line 2 is no JSON (Expecting value"),
    "half an object": (b'{"prompt": "x"', "line 1 is no JSON (Expecting ',' delimiter"),
    "two values": (b'"a" "b"', "line 1 is no JSON (Extra data"),
    "very deep": (b"[" * 100_000, "line 1 is no JSON"),
    "not UTF-8": (
        b'"fine"\n"caf\xe9"\n',
        "is not UTF-8 ('utf-8' codec can't decode byte 0xe9 in position 11",
    ),
    "UTF-16": ('"fine"\n'.encode("utf-16"), "is not UTF-8"),
    "no prompt": (b'{"text": "x", "id": 3}', 'line 1 holds no text: {"text": "x", "id": 3}; expected'),
    "empty object": (b"{}", "line 1 holds no text: {}"),
    "number": (b"\n\n17\n", "line 3 holds no text: 17; expected a JSON string"),
    "null": (b'{"prompt": null}', 'line 1 holds no text: {"prompt": null}'),
    "list": (b'["a", "b"]', 'line 1 holds no text: ["a", "b"]'),
    "chat": (b'{"prompt": {"role": "user"}}', 'line 1 holds no text: {"prompt": {"role"'),
    "empty prompt": (b'{"prompt": " \\n"}', "line 1 holds no text"),
    "lone surrogate": (b'"\\ud800"', "line 1 is no valid text (surrogates not allowed)"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_with_the_line(name: str, tmp_path: Path) -> None:
    content, expected = BAD[name]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="--prompts") as refused:
        read_prompts(path)
    assert str(path) in str(refused.value) and expected in str(refused.value)


@pytest.mark.parametrize(("name", "reason"), [("missing.jsonl", "No such file"), ("", "Is a directory")])
def test_file_that_can_not_be_read(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*give a file that can be read"):
        read_prompts(tmp_path / name)
