"""Answers of GPT-OSS, as openai-harmony writes them."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import litellm
import pytest

from ovspec.serve.chat_requests import ChatRequest
from ovspec.serve.output.harmony import HarmonyStream, begun_answer, harmony_encoding, is_harmony
from ovspec.serve.output.message_parser import NewText, text_of
from ovspec.serve.output.response_output import ResponseOutput
from ovspec.serve.requests.bodies import ChatBody
from ovspec.vision.picture_prompts import PicturePrompt

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
    "a character of several tokens": (THOUGHT + "So 𓀀", "Hm 🙂 é.", "So 𓀀", []),
    "in turn": (
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>B<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>C<|end|>"
        + CALL.format("weather", '{"a": 1}').replace("<|call|>", "<|end|>")
        + "<|start|>assistant<|channel|>final<|message|>D", "AC", "BD", [("weather", '{"a": 1}')],
    ),
    "nothing": ("", "", "", []),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokens() -> list[bytes]:
    """The bytes of GPT-OSS's tokens, in a file of litellm that has the name that tiktoken gives it."""
    folder = Path(litellm.__file__).parent / "litellm_core_utils/tokenizers"
    lines = (folder / "fb374d419588a4632f3f557e76b4b70aebbca790").read_bytes().splitlines()
    return [base64.b64decode(line.split()[0]) for line in lines]


@pytest.fixture(scope="module")
def encoding(tokens: list[bytes]) -> Any:
    found = harmony_encoding(tokens)
    assert found is not None
    return found


def texts_of(output: ResponseOutput) -> list[tuple[str, str]]:
    """The items of an answer: kind and text."""
    texts = [one["content"][0]["text"] if "content" in one else one["arguments"] for one in output.items]
    return [(one["type"], text) for one, text in zip(output.items, texts, strict=True)]


@pytest.mark.parametrize("name", ANSWERS)
def test_parts_whole_and_as_they_come(encoding: Any, name: str) -> None:
    text, reasoning, content, calls = ANSWERS[name]
    answer = encoding.encode(text, allowed_special="all")
    whole = ResponseOutput(HarmonyStream(encoding, {"weather", "time"}))
    whole.add("", [], "stop", answer)
    for seed in range(7):
        rng = random.Random(seed)
        cuts = sorted(rng.choices(range(len(answer) + 1), k=rng.randint(0, len(answer)))) if seed else []
        cuts = list(range(len(answer) + 1)) if seed == 6 else cuts
        cut = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        stream = HarmonyStream(encoding, {"weather", "time"})
        output = ResponseOutput(HarmonyStream(encoding, {"weather", "time"}))
        pieces, streamed = [], dict[int, list[str]]()
        for place, tokens in enumerate(cut):
            finished = place + 1 == len(cut)
            pieces += stream.add("", finished, tokens)
            output.add("", [], "stop" if finished else None, tokens)
        assert (text_of(pieces, "reasoning"), text_of(pieces, "content")) == (reasoning, content)
        for new in pieces:
            if not isinstance(new, NewText):
                assert new.is_first == (new.index not in streamed)
                streamed.setdefault(new.index, [new.call.name, ""])[1] += new.call.arguments
        assert [tuple(one) for one in streamed.values()] == calls
        assert [(call.name, call.arguments) for call in stream.calls] == calls
        assert bool(stream.num_reasoning_tokens) == bool(reasoning)
        assert texts_of(output) == texts_of(whole)
    if name == "in turn":
        kinds = ("reasoning", "message", "reasoning", "function_call", "message")
        assert texts_of(whole) == list(zip(kinds, ("A", "B", "C", '{"a": 1}', "D"), strict=True))


@pytest.mark.parametrize("text", ["Hi 𓀀", THOUGHT + "So 𓀀"])
def test_text_without_channels_that_ends_inside_a_character(encoding: Any, text: str) -> None:
    tokens = encoding.encode(text, allowed_special="all")[:-1]
    for cut in ([tokens], [[token] for token in tokens], [tokens, []]):
        stream = HarmonyStream(encoding, ())
        pieces = [one for place, ids in enumerate(cut) for one in stream.add("", place + 1 == len(cut), ids)]
        assert text_of(pieces, "content") == text.rpartition("<|end|>")[2][:-1] + "\ufffd"


def test_an_answer_that_the_prompt_has_begun(encoding: Any) -> None:
    prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>So"
    begun = begun_answer(encoding, encoding.encode(prompt, allowed_special="all"))
    stream = HarmonyStream(encoding, (), begun)
    assert stream.num_reasoning_tokens is None
    assert stream.add("", True, encoding.encode(" it is")) == [NewText("reasoning", " it is")]
    assert stream.num_reasoning_tokens == 2
    assert begun_answer(encoding, encoding.encode("Hi")) == []


@pytest.mark.parametrize("asked", [True, False], ids=["generation prompt", "none"])
def test_the_last_answer_of_a_chat_is_not_the_next(encoding: Any, asked: bool) -> None:
    """Without a generation prompt, an answer begins with `<|start|>assistant` itself."""
    begin, rest = "<|start|>assistant", "<|channel|>final<|message|>It rains."
    result = "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>rain<|end|>"
    text = CALL.format("weather", "{}") + result + (begin if asked else "")

    def tokens_of(text: str) -> list[int]:
        return encoding.encode(text, allowed_special="all")

    model: Any = SimpleNamespace(  # no model of this format is small
        tokenizer=SimpleNamespace(chat_template=text),
        harmony=encoding,
        chat_text=lambda *_: text,
        prompt=lambda text, messages: PicturePrompt(tokens_of(text), None),
    )
    tool = {"type": "function", "function": {"name": "weather"}}
    fields = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    request = ChatRequest.of(ChatBody.of_fields({**fields, "add_generation_prompt": asked}), model)
    stream = request.parts()
    pieces = stream.add("", True, tokens_of(rest if asked else begin + rest))
    assert pieces == [NewText("content", "It rains.")] and not stream.calls


def test_another_vocabulary_is_no_fault(tokens: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    assert harmony_encoding(tokens[::-1]) is None and "its tokens are others" in caplog.text
    assert is_harmony("<|start|>assistant<|channel|>") and not is_harmony("<|im_start|>")
