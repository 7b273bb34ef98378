"""Calls of tools found in what models of each family write, whole and as it comes."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from ovspec.serve.output.message_parser import MessageParser, MessageStream, NewCall, text_of

WEATHER = '{"city": "Köln \\"a}\\" [", "days": {"n": [1, 2]}}'
ONE = [("weather", WEATHER)]
# What a model writes, and its reasoning, content and calls.
ANSWERS: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "text": ("Just text {with} braces <tool", "", "Just text {with} braces <tool", []),
    "hermes": (
        f'Let me.\n<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>',
        "", "Let me.", ONE,
    ),
    "several": (
        f'<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        "", "", [*ONE, ("time", "{}")],
    ),
    "llama": (f'{{"name": "weather", "parameters": {WEATHER}}}', "", "", ONE),
    "python tag": (f'<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}', "", "", ONE),
    "llama function": (f"<function=weather>{WEATHER}</function>", "", "", ONE),
    "mistral": (f'[TOOL_CALLS][{{"name": "weather", "arguments": {WEATHER}}}]', "", "", ONE),
    "mistral without its mark": (f'[{{"name": "weather", "arguments": {WEATHER}}}]', "", "", ONE),
    "new mistral": (f"[TOOL_CALLS]weather[ARGS]{WEATHER}", "", "", ONE),
    "new mistral without its marks": (f"weather{WEATHER}", "", "", ONE),
    "the name of a tool": ("time flies", "", "time flies", []),
    "phi": (f'functools[{{"name": "weather", "arguments": {WEATHER}}}]', "", "", ONE),
    "phi 4": (f'<|tool_call|>[{{"name": "weather", "arguments": {WEATHER}}}]<|/tool_call|>', "", "", ONE),
    "arguments before the name": (
        f'<tool_call>\n{{"arguments": {WEATHER}, "name": "weather"}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "time"}</tool_call>',
        "", "", [*ONE, ("time", "{}")],
    ),
    "arguments without a name": ('{"arguments": {"name": 1}}', "", '{"arguments": {"name": 1}}', []),
    "qwen coder": (
        "So.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln </function>\n\n</parameter>\n"
        '<parameter=days>\n3\n</parameter>\n<parameter=more>{"a": [true]}</parameter>\n'
        "<parameter=raining>\nTrue\n</parameter>\n<parameter=unit>\n\"F\"\n</parameter>\n"
        "<parameter=zip>\n50667\n</parameter>\n<parameter=state>\nnull\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
        "", "So.",
        [
            (
                "weather",
                '{"city": "K\\u00f6ln </function>\\n", "days": 3, "more": {"a": [true]}, "raining": true, '
                '"unit": "F", "zip": "50667", "state": null}',
            ),
            ("time", "{}"),
        ],
    ),
    "qwen coder, in JSON and not": (
        "<tool_call>\n<function=weather>\n<parameter=day>\n \"now\"\n</parameter>\n<parameter=wind>\n\"N\"\n"
        "</parameter>\n<parameter=sea>\nN\n</parameter>\n<parameter=code>5</parameter>\n</function>\n</tool_call>",
        "", "", [("weather", '{"day": "now", "wind": "N", "sea": "N", "code": "5"}')],
    ),
    "python": (
        "[weather(city='a\\'s \"(b)\"', days=[1, -2.5], more={'x': None, \"y\": True}), time()]", "", "",
        [
            ("weather", '{"city": "a\'s \\"(b)\\"", "days": [1, -2.5], "more": {"x": null, "y": true}}'),
            ("time", "{}"),
        ],
    ),
    "python behind its tag": ('<|python_tag|>[time(zone="a=b")]', "", "", [("time", '{"zone": "a=b"}')]),
    "python without names": ('[weather("Köln")]', "", '[weather("Köln")]', []),
    "python that is no call": ("[weather] is bad", "", "[weather] is bad", []),
    "python of another": ("[rm(path=1)]", "", "[rm(path=1)]", []),
    "mistral with an id": (
        f"[TOOL_CALLS]weather[CALL_ID]aB3456789[ARGS]{WEATHER}[TOOL_CALLS]time[CALL_ID]bB3456789[ARGS]{{}}",
        "", "", [*ONE, ("time", "{}")],
    ),
    "mistral with an id, without its marks": (
        f"weatheraB3456789{WEATHER}timebB3456789{{}}", "", "", [*ONE, ("time", "{}")]
    ),
    "generic": (
        f'{{\n "tool_calls": [{{"name": "weather", "arguments": {WEATHER}, "id": "a"}}]}}', "", "", ONE
    ),
    "JSON": ('{"city": "Köln"}', "", '{"city": "Köln"}', []),
    "another name": ('{"name": "Bob", "age": 3}', "", '{"name": "Bob", "age": 3}', []),
    "undeclared": ('{"name": "rm", "arguments": {}}', "", '{"name": "rm", "arguments": {}}', []),
    "no JSON": (
        '<tool_call>{"name": "time", "arguments": {a}}',
        "", "", [("time", "{a}")],
    ),
    "reasoning": ("<think>\nHm < 3\n</think>\n\nSo.", "Hm < 3", "So.", []),
    "reasoned call": (
        f'<think>\nHm\n</think>\n\n<tool_call>{{"name": "weather", "arguments": {WEATHER}}}</tool_call>',
        "Hm", "", ONE,
    ),
}  # fmt: skip


TYPES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "raining": {"type": ["boolean", "null"]},
    "unit": {"type": "string", "enum": ["C", "F"]},
    "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "state": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "day": {"type": "string", "const": "now"},
    "wind": {"anyOf": [{"type": "string", "enum": ["N", "S"]}, {"type": "null"}]},
    "sea": {"anyOf": [{"type": "string", "enum": ["N", "S"]}, {"type": "null"}]},
    "code": {"type": "string", "const": "5"},
}
SCHEMAS: dict[str, dict[str, Any]] = {"weather": {"type": "object", "properties": TYPES}, "time": {}}


def parser() -> MessageParser:
    return MessageParser(SCHEMAS, reasons=True, starts_in_reasoning=False)


def test_a_call_that_was_shown_keeps_its_place() -> None:
    """Arguments that turn out to be no JSON were seen by the client: the next call is another one."""
    text = '<tool_call>{"name": "time", "arguments": {"a": 1,}}</tool_call>' + ANSWERS["hermes"][0][8:]
    stream, got = MessageStream(parser()), dict[int, list[str]]()
    for begin in range(0, len(text), 7):
        for piece in stream.add(text[begin : begin + 7], begin + 7 >= len(text)):
            if isinstance(piece, NewCall):
                assert piece.is_first == (piece.index not in got)
                got.setdefault(piece.index, [piece.call.id, piece.call.name, ""])[2] += piece.call.arguments
    assert [call[1:] for call in got.values()] == [["time", '{"a": 1,}'], ["weather", WEATHER]]
    assert [call.id for call in stream.calls] == [call[0] for call in got.values()]


@pytest.mark.parametrize("name", ANSWERS)
def test_parts_whole_and_as_they_come(name: str) -> None:
    text, reasoning, content, calls = ANSWERS[name]
    parts = parser().parse(text, finished=True)
    assert (parts.reasoning, parts.content) == (reasoning, content)
    assert [(call.name, call.arguments) for call in parts.calls] == calls
    for seed in range(20):
        rng, stream = random.Random(seed), MessageStream(parser())
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, len(text))))
        got: list[Any] = ["", ""]
        streamed: dict[int, list[str]] = {}
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            pieces = stream.add(text[begin:end], end == len(text) and begin == ([0, *cuts])[-1])
            got[0] += text_of(pieces, "reasoning")
            got[1] += text_of(pieces, "content")
            for new in pieces:
                if isinstance(new, NewCall):
                    call = new.call
                    assert new.is_first == (new.index not in streamed)
                    streamed.setdefault(new.index, [call.name, "", call.id])[1] += call.arguments
        assert got == [reasoning, content]
        assert [tuple(one[:2]) for one in streamed.values()] == calls
        assert len({one[2] for one in streamed.values()}) == len(streamed)


@pytest.mark.parametrize(
    ("text", "thought"),
    [("<think>\nHm</think>So.", "Hm"), ("<thin", "<thin"), ("<this></think>So.", "<this>")],
)
def test_a_mark_that_is_written_again_behind_the_prompts(text: str, thought: str) -> None:
    """As it comes, the mark is no reasoning."""
    for size in range(1, len(text) + 1):
        stream = MessageStream(MessageParser(SCHEMAS, reasons=True, starts_in_reasoning=True))
        cuts = range(0, len(text), size)
        pieces = [new for at in cuts for new in stream.add(text[at : at + size], at + size >= len(text))]
        assert text_of(pieces, "reasoning") == thought
        assert text_of(pieces, "content") == ("So." if "</think>" in text else "")


@pytest.mark.parametrize(
    ("begin", "word"),
    [
        ("", "word "),
        ("", "word"),
        ("<tool_call> ", "word "),
        ('<tool_call>{"name": "weather", "arguments": {"a": "', "word "),
        ("<tool_call><function=weather><parameter=a>", "</function>"),
        ("[weather(a='", "word "),
        ("", '<tool_call>{"name": "time", "arguments": {}}</tool_call>'),
    ],
    ids=["text", "a long word", "a mark", "arguments", "tags", "python", "calls"],
)
def test_a_long_answer_takes_time_by_its_length(begin: str, word: str) -> None:
    def seconds(count: int) -> float:
        stream, start = MessageStream(parser()), time.process_time()
        for delta in [begin, *[word[at : at + 5] for at in range(0, len(word), 5)] * count][:count]:
            stream.add(delta, False)
        return time.process_time() - start

    assert min(seconds(8000) for _ in range(2)) < 9 * min(seconds(2000) for _ in range(3))


@pytest.mark.parametrize("depth", [3, 5000])
def test_arguments_of_any_depth(depth: int) -> None:
    """Python reads JSON of some depth only; a client gets the rest as the model wrote it."""
    text = '<tool_call>{"name": "time", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}</tool_call>"
    [piece] = MessageStream(parser()).add(text, True)
    assert isinstance(piece, NewCall) and piece.call.arguments.count("[") == depth


@pytest.mark.parametrize("marks", ["[TOOL_CALLS]weather[CALL_ID]aB3456789[ARGS]", "weatheraB3456789"])
def test_an_id_of_the_models_is_kept(marks: str) -> None:
    [call] = parser().parse(f"{marks}{WEATHER}", finished=True).calls
    assert (call.name, call.id) == ("weather", "aB3456789")
