"""Answers of GPT-OSS, as openai-harmony writes them."""

from __future__ import annotations

import base64
import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai_harmony")
pytest.importorskip("starlette")

from ovspec.serve.harmony import HarmonyStream, begun_answer, harmony_encoding, is_harmony
from ovspec.serve.message_parser import Parts

CALL = "<|start|>assistant<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
THOUGHT = "<|channel|>analysis<|message|>Hm 🙂 é.<|end|>"
# An answer, and its reasoning, content and calls.
ANSWERS: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "text": (
        THOUGHT + "<|start|>assistant<|channel|>final<|message|>Hi 🙂.<|return|>", "Hm 🙂 é.", "Hi 🙂.", []
    ),
    "cut": ("<|channel|>final<|message|>Hi", "", "Hi", []),
    "call": (THOUGHT + CALL.format("weather", '{"a": "ö"}'), "Hm 🙂 é.", "", [("weather", '{"a": "ö"}')]),
    "preamble and two calls": (
        "<|channel|>commentary<|message|>Let me.<|end|>"
        + CALL.format("weather", "{}")
        + CALL.format("time", "{}"),
        "", "Let me.", [("weather", "{}"), ("time", "{}")],
    ),
    "undeclared": (CALL.format("rm", "{}").removeprefix("<|start|>assistant"), "", "{}", []),
    "no channels": ("Plain text", "", "Plain text", []),
    "text behind a message": (THOUGHT + "So <|end|>", "Hm 🙂 é.", "So <|end|>", []),
    "nothing": ("", "", "", []),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokens() -> list[bytes]:
    """The bytes of GPT-OSS's tokens, which some packages have in a file."""
    for package, place in (
        ("litellm", "litellm_core_utils/tokenizers"),
        ("llama_index.core", "_static/tiktoken_cache"),
    ):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        if found is not None and found.origin is not None:
            path = Path(found.origin).parent / place / "fb374d419588a4632f3f557e76b4b70aebbca790"
            if path.exists():
                return [base64.b64decode(line.split()[0]) for line in path.read_bytes().splitlines()]
    pytest.skip("no package has the vocabulary")


@pytest.fixture(scope="module")
def encoding(tokens: list[bytes]) -> Any:
    found = harmony_encoding(tokens)
    assert found is not None
    return found


def parts_of(stream: HarmonyStream, pieces: list[list[int]]) -> tuple[Parts, dict[int, list[str]]]:
    whole, calls = Parts(), dict[int, list[str]]()
    for place, piece in enumerate(pieces):
        new, changed = stream.add("", place + 1 == len(pieces), piece)
        whole.content += new.content
        whole.reasoning += new.reasoning
        for index, call, is_first in changed:
            assert is_first == (index not in calls)
            calls.setdefault(index, [call.name, ""])[1] += call.arguments
    return whole, calls


@pytest.mark.parametrize("name", ANSWERS)
def test_parts_whole_and_as_they_come(encoding: Any, name: str) -> None:
    text, reasoning, content, calls = ANSWERS[name]
    answer = encoding.encode(text, allowed_special="all")
    for seed in range(6):
        rng = random.Random(seed)
        cuts = sorted(rng.choices(range(len(answer) + 1), k=rng.randint(0, len(answer)))) if seed else []
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        stream = HarmonyStream(encoding, {"weather", "time"})
        whole, streamed = parts_of(stream, pieces)
        assert (whole.reasoning, whole.content) == (reasoning, content)
        assert [tuple(one) for one in streamed.values()] == calls
        assert [(call.name, call.arguments, call.whole) for call in stream.calls] == [
            (*c, True) for c in calls
        ]
        assert bool(stream.num_reasoning_tokens) == bool(reasoning)


def test_an_answer_that_the_prompt_has_begun(encoding: Any) -> None:
    prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>So"
    begun = begun_answer(encoding, encoding.encode(prompt, allowed_special="all"))
    stream = HarmonyStream(encoding, (), begun)
    assert parts_of(stream, [encoding.encode(" it is.")])[0].content == " it is."
    assert begun_answer(encoding, encoding.encode("Hi")) == []


def test_another_vocabulary_is_no_fault(tokens: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    assert harmony_encoding(tokens[::-1]) is None and "its tokens are others" in caplog.text
    assert is_harmony("<|start|>assistant<|channel|>") and not is_harmony("<|im_start|>")
