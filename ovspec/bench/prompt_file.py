"""Prompts of one's own: a JSONL file of texts or chats, in categories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec.bench.generate_child import encoded
from ovspec_models.folder.jsonl import check_text, json_lines
from ovspec_models.folder.shown import cut

ALL = "all"
_FIELDS = ("role", "content")
_EXPECTED = 'expected a JSON string, {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt.

    Attributes:
        line: of the file, from 1; 0 for one that comes from elsewhere.
        category: that it is counted in.
        body: `{"prompt": text}` or `{"messages": list of role and content}`.
    """

    line: int
    category: str
    body: dict[str, Any]


def read_prompt_file(path: Path, category: str | None = None, limit: int | None = None) -> list[BenchPrompt]:
    """Read a JSONL file; a line is a JSON string, or an object with `prompt` or `messages`.

    Args:
        category: field of an object that names its category; `None`: all are in one.
        limit: the first prompts of each category that count; `None`: all.

    Raises:
        ValueError: a line is none of these or has no such field, or there is none; it names the line.
    """
    prompts, counts = list[BenchPrompt](), dict[str, int]()
    for line, value in json_lines(f"--prompts {path}", path.read_bytes):
        place = f"--prompts {path}: line {line}"
        body = _body(place, value)
        name = ALL
        if category is not None:
            found = value.get(category) if isinstance(value, dict) else None
            name = "" if found is None else str(found)
            if not name:
                raise ValueError(f"{place} has no field {category!r}, which --category names; add it")
        counts[name] = counts.get(name, 0) + 1
        if limit is None or counts[name] <= limit:
            prompts.append(BenchPrompt(line, name, body))
    if not prompts:
        raise ValueError(f"--prompts {path} holds no prompt; {_EXPECTED} in every line")
    return prompts


def token_ids(tokenizer: Any, prompts: Sequence[BenchPrompt], positions: int | None) -> list[list[int]]:
    """The token ids of prompts, as chats where the model has a template.

    Args:
        positions: of the model; `None`: not known.

    Raises:
        ValueError: a prompt that leaves no position for an answer, or a chat without a template; it names the
            line.
    """
    found = []
    for prompt in prompts:
        place = f"the prompt in line {prompt.line}" if prompt.line else "the prompt"
        if "messages" in prompt.body and not tokenizer.chat_template:
            raise ValueError(f"{place} has messages, and the model no chat template; give a text")
        ids = encoded(tokenizer, prompt.body).input_ids.data[0].tolist()
        if positions is not None and len(ids) >= positions:
            raise ValueError(
                f"{place} has {len(ids)} tokens, the model {positions} positions; shorten it or leave it out"
            )
        found.append(ids)
    return found


def _body(place: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and _is_chat(value.get("messages")):
        messages = [{name: entry[name] for name in _FIELDS} for entry in value["messages"]]
        for message in messages:
            check_text(place, message["content"])
        return {"messages": messages}
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{place} holds no prompt: {cut(json.dumps(value))}; {_EXPECTED}")
    check_text(place, text)
    return {"prompt": text}


def _is_chat(messages: Any) -> bool:
    return bool(
        isinstance(messages, list)
        and messages
        and all(
            isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in _FIELDS)
            for entry in messages
        )
    )
