"""Calls in every form, with arguments of any kind, are found whole and in pieces of any length."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovspec.serve.output.message_parser import MessageParser, MessageStream, NewCall, text_of

NAMES = ("weather", "weather_of", "get.time", "f")
PIECES = (
    *(
        "'",
        '"',
        "\\",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        "=",
        ":",
        "\n",
        " ",
        "a",
        "ö",
        "😀",
        "\t",
        "\r",
        "n",
    ),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "functools[", "True", "None", "f(", '"name": "f"', "</"),
    *('"arguments": {', "<|python_tag|>", "<function=f>", "\\n", "x=1", "'''"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**20),
    TEXTS,
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b2", "from", "class", "_x", "True_"]), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
Calls = list[tuple[str, dict[str, Any]]]


def of_json(
    begin: str, end: str, separator: str, key: str = "arguments", late: bool = False
) -> Callable[[Calls], str]:
    def written(calls: Calls) -> str:
        parts = []
        for name, arguments in calls:
            fields = {"name": name, key: arguments}
            parts.append(json.dumps(dict(reversed(fields.items())) if late else fields, ensure_ascii=False))
        return begin + separator.join(parts) + end

    return written


def in_python(quoted: Callable[[str], str], comma: str, equals: str) -> Callable[[Calls], str]:
    def value(one: Any) -> str:
        if isinstance(one, str):
            return quoted(one)
        if isinstance(one, list):
            return f"[{comma.join(map(value, one))}]"
        if isinstance(one, dict):
            return "{" + comma.join(f"{quoted(key)}: {value(each)}" for key, each in one.items()) + "}"
        return repr(one)

    def written(calls: Calls) -> str:
        each = (
            f"{name}({comma.join(key + equals + value(one) for key, one in given.items())})"
            for name, given in calls
        )
        return f"[{comma.join(each)}]"

    return written


FORMS: dict[str, Callable[[Calls], str]] = {
    "hermes": of_json("<tool_call>\n", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n"),
    "hermes, arguments first": of_json("<tool_call>", "</tool_call>", "</tool_call><tool_call>", late=True),
    "llama": of_json("", "", "; ", "parameters"),
    "mistral": of_json("[TOOL_CALLS][", "]", ", "),
    "mistral without its mark": of_json("[", "]", ", "),
    "phi": of_json("functools[", "]", ", "),
    "generic": of_json('{"tool_calls": [', "]}", ", "),
    "new mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(one)}" for name, one in calls),
    "llama function": lambda calls: "".join(
        f"<function={name}>{json.dumps(one)}</function>" for name, one in calls
    ),
    "python": in_python(repr, ", ", "="),
    "python in JSON's quotes": in_python(json.dumps, ",", " = "),
    "python over lines": in_python(
        lambda text: repr(text.replace("\n", "§")).replace("§", "\n"), ",\n  ", "="
    ),
}


def streamed(text: str, cuts: list[int]) -> tuple[str, list[tuple[str, str]]]:
    stream, content, calls = MessageStream(parser()), "", dict[int, list[str]]()
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces = stream.add(text[begin:end], False)
        pieces += stream.add("", True) if end == len(text) and begin == [0, *cuts][-1] else []
        content += text_of(pieces, "content")
        for new in pieces:
            if isinstance(new, NewCall):
                calls.setdefault(new.index, [new.call.name, ""])[1] += new.call.arguments
    return content, [(name, arguments) for name, arguments in calls.values()]


def parser() -> MessageParser:
    return MessageParser({name: {} for name in NAMES}, reasons=False, starts_in_reasoning=False)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_pieces_are_as_the_whole(form: str, data: Any) -> None:
    calls: Calls = data.draw(CALLS)
    text = FORMS[form](calls)
    parts = parser().parse(text, finished=True)
    found = [(call.name, json.loads(call.arguments)) for call in parts.calls]
    assert (parts.content, found) == ("", calls)
    whole = ("", [(call.name, call.arguments) for call in parts.calls])
    assert streamed(text, list(range(1, len(text)))) == whole
    for cut in range(1, len(text)):
        assert streamed(text, [cut]) == whole


BEFORE = ("", " ", "\n\n", "Let me see. ", '{"name": "Bob"}\n', "[1] is <it>: ", "f(x) ", "{")


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_cut_answer_is_one_text_whole_and_in_pieces(form: str, data: Any) -> None:
    """Whatever stands before and behind calls, and wherever the answer is cut."""
    text = data.draw(st.sampled_from(BEFORE)) + FORMS[form](data.draw(CALLS)) + data.draw(TEXTS)
    text = text[: data.draw(st.integers(1, len(text)))]
    parts = parser().parse(text, finished=True)
    whole = (parts.content, [(call.name, call.arguments) for call in parts.calls])
    assert streamed(text, list(range(1, len(text)))) == whole
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=5)) - {len(text)})
    assert streamed(text, cuts) == whole


@pytest.mark.parametrize("form", FORMS)
def test_what_is_before_calls_is_content(form: str) -> None:
    """Before calls that a mark begins; others begin an answer."""
    text = FORMS[form]([("f", {"a": "<tool_call>"}), ("weather", {})])
    for before in BEFORE[3:6] if text.startswith(("<", "[TOOL", "functools[")) else BEFORE[:3]:
        content, calls = streamed(before + text, list(range(1, len(before + text))))
        assert content == before.strip() and [name for name, _ in calls] == ["f", "weather"]


PYTHON: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "[ f( ) ]": [("f", {})],
    "[f(\n  a=1,\n  b2='x',\n)]": [("f", {"a": 1, "b2": "x"})],
    "[f(a=[1, 2,], b2={'x': (1, -2.5)},)]": [("f", {"a": [1, 2], "b2": {"x": [1, -2.5]}})],
    "[f(a=true, b2=null, c=[False])]": [("f", {"a": True, "b2": None, "c": [False]})],
    '[f(a=\'it\\\'s\', b2="say \\"x\\"")]': [("f", {"a": "it's", "b2": 'say "x"'})],
    "[f(a='C:\\\\x\\n', b2='\\d+')]": [("f", {"a": "C:\\x\n", "b2": "\\d+"})],
    "[f(a=-1e-3, b2=.5, c=5., d=+3, e=1_000)]": [("f", {"a": -1e-3, "b2": 0.5, "c": 5.0, "d": 3, "e": 1000})],
    "[f(a='x'), weather(a=f(1))]": [("f", {"a": "x"})],
    "[f(a=1), f(b2=": [("f", {"a": 1})],
    "[f(1)]": [],
    "[rm(a=1)]": [],
}


@pytest.mark.parametrize("text", PYTHON)
def test_arguments_in_python(text: str) -> None:
    for cuts in ([], list(range(1, len(text)))):
        content, calls = streamed(text, cuts)
        assert [(name, json.loads(arguments)) for name, arguments in calls] == PYTHON[text]
        assert content == ("" if calls else text)


@pytest.mark.parametrize("before", ["", "Let me see. ", "Let me see. [weather(a={'<tool_call>': 1, '"])
def test_arguments_that_are_no_json(before: str) -> None:
    """What a stream has shown is not taken back, so a whole answer has the call too."""
    text = before + "<function=f>{': None}}"
    parts = parser().parse(text, finished=True)
    found = [(call.name, call.arguments) for call in parts.calls]
    assert found == [("f", "{': None}")]
    for cuts in ([], list(range(1, len(text)))):
        assert streamed(text, cuts) == (parts.content, found)
