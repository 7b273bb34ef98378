"""Calls of tools: found in what models of each family write, and made by grammar where they are required."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from serve.conftest import TEMPLATE, Served, serving

from ovspec.serve.output.message_parser import MessageParser, MessageStream, NewCall, text_of
from ovspec.serve.tools import GENERIC, HERMES, LIST, LLAMA, QWEN_CODER, form_of

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
        "", '<tool_call>{"name": "time", "arguments": {a}}', [],
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
        if name != "no JSON":  # what was sent of a call is not taken back
            assert got == [reasoning, content]
            assert [tuple(one[:2]) for one in streamed.values()] == calls
            assert len({one[2] for one in streamed.values()}) == len(streamed)


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
    """Python reads JSON of some depth only; what it does not read is no call."""
    text = '<tool_call>{"name": "time", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}</tool_call>"
    pieces = MessageStream(parser()).add(text, True)
    assert [isinstance(new, NewCall) for new in pieces] == [depth == 3]
    assert text_of(pieces, "content") == ("" if depth == 3 else text)


@pytest.mark.parametrize("marks", ["[TOOL_CALLS]weather[CALL_ID]aB3456789[ARGS]", "weatheraB3456789"])
def test_an_id_of_the_models_is_kept(marks: str) -> None:
    [call] = parser().parse(f"{marks}{WEATHER}", finished=True).calls
    assert (call.name, call.id) == ("weather", "aB3456789")


def test_the_form_of_a_family() -> None:
    assert form_of("... <tool_call> <function=example> <parameter=x> ...") is QWEN_CODER
    assert form_of("... <tool_call> ...") is HERMES
    assert form_of("... [TOOL_CALLS] ...") is LIST
    assert form_of("... <|python_tag|> ...") is LLAMA
    assert form_of("{{ message.content }}") is GENERIC


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time"}},
]
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 80}
NAMED = {"type": "function", "function": {"name": "weather"}}


def check_call(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments["city"] in ("Rome", "Oslo") and 1 <= arguments["days"] <= 9
    else:
        assert call["function"]["name"] == "time" and arguments == {}


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
def test_a_call_that_is_required(served: Served, choice: Any) -> None:
    body = {**CHAT, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    status, answer = served.post("/v1/chat/completions", body)
    assert status == 200, answer
    [one] = answer["choices"]
    assert one["finish_reason"] == "tool_calls" and one["message"]["content"] is None
    [call] = one["message"]["tool_calls"]
    check_call(call)
    with served.client().chat.completions.stream(**body) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.arguments == call["function"]["arguments"]
    # The call and its result go back.
    result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "sunny"}]}
    messages = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    status, answer = served.post("/v1/chat/completions", {**CHAT, "messages": messages, "tools": TOOLS})
    assert status == 200 and answer["choices"][0]["finish_reason"] in ("stop", "length")


WRONG_SCHEMAS: dict[str, dict[str, Any]] = {
    "items.type": {"items": {"type": 5}},
    "no object": {"type": "string"},
    "properties.a.type": {"properties": {"a": {"type": "text"}}},
    "properties": {"properties": ["a"]},
    "properties.a": {"properties": {"a": "string"}},
    "properties.a.required": {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
    "$defs.A.anyOf.1.enum": {"$defs": {"A": {"anyOf": [True, {"enum": "x"}]}}},
    "properties.a.items": {"properties": {"a": {"items": 3}}},
    "additionalProperties.minimum": {"additionalProperties": {"minimum": "0"}},
}


@pytest.mark.parametrize("place", WRONG_SCHEMAS)
def test_a_schema_that_is_none_is_refused_whatever_the_choice(served: Served, place: str) -> None:
    function = {"name": "f", "parameters": WRONG_SCHEMAS[place]}
    chat = {**CHAT, "tools": [{"type": "function", "function": function}]}
    response = {"model": "demo", "input": "Once", "tools": [{"type": "function", **function}]}
    for path, body in (("chat/completions", chat), ("responses", response)):
        for choice in ("auto", "none"):
            status, answer = served.post(f"/v1/{path}", {**body, "tool_choice": choice})
            assert status == 400 and answer["error"]["param"] == "tools", answer
            assert "no JSON schema" in answer["error"]["message"]
            assert place == "no object" or f" {place}=" in answer["error"]["message"]


def test_a_free_call_may_have_a_schema_that_no_grammar_follows(served: Served) -> None:
    pattern = {"type": "string", "pattern": "^(?=a)", "not": {"const": "ab"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": pattern}}}
    body = {**CHAT, "max_tokens": 2, "tools": [{"type": "function", "function": function}]}
    assert served.post("/v1/chat/completions", body)[0] == 200
    assert served.post("/v1/chat/completions", {**body, "tool_choice": "required"})[0] == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": {**NAMED, "function": {"name": "rm"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[1]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{a"}}
                        ],
                    }
                ]
            },
            "messages",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[" * 10**5}}],
                    }
                ]
            },
            "messages",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [31] * 10**5}}}]},
            "tools",
        ),
        ({"chat_template_kwargs": {"a": [31] * 10**5}}, "chat_template_kwargs"),
    ],
)
def test_what_can_not_be_called_is_refused(served: Served, fields: dict[str, Any], param: str) -> None:
    status, answer = served.post("/v1/chat/completions", {**CHAT, **fields})
    assert status == 400, answer
    assert answer["error"]["param"] == param and "\n" not in answer["error"]["message"]


# What Mistral's public templates do with calls and their results.
MISTRAL = """
{%- macro check(id) %}
  {%- if id is not defined or id|length != 9 %}
    {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
  {%- endif %}
{%- endmacro %}
{%- for message in messages %}
  {%- if message.role == "user" %}
    {{- message.content }}
  {%- elif message.role == "tool" %}
    {{- check(message.tool_call_id) }}
    {{- "[TOOL_RESULTS]" + message.content + " of " + message.tool_call_id }}
  {%- elif message.tool_calls is defined and message.tool_calls %}
    {{- "[TOOL_CALLS]" }}
    {%- for call in message.tool_calls %}
      {{- check(call.id) }}
      {{- (call.function|tojson)[:-1] + ", id: " + call.id + "}" }}
    {%- endfor %}
  {%- else %}
    {%- if loop.first %}
      {{- raise_exception("Conversations must begin with a user!") }}
    {%- endif %}
    {{- message.content }}
  {%- endif %}
{%- endfor %}
"""


def test_calls_go_back_through_a_template_of_mistrals(demo_ir: Path, tmp_path: Path) -> None:
    path = tmp_path / "mistral.jinja"
    path.write_text(MISTRAL, encoding="utf-8")
    user = CHAT["messages"]

    def answered(call: dict[str, Any], id: str) -> list[dict[str, Any]]:
        return [
            *user,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": "sunny"},
        ]

    with serving(demo_ir, "--chat-template", path, "--served-model-name", "demo") as served:
        body = {**CHAT, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 200}
        status, answer = served.post("/v1/chat/completions", body)
        assert status == 200, answer
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert len(call["id"]) == 9 and call["id"].isalnum()
        for id in (call["id"], "call_0123456789abcdef01234567"):
            messages = answered({**call, "id": id}, id)
            status, answer = served.post("/v1/chat/completions", {**CHAT, "messages": messages})
            assert status == 200, answer
            tokens = served.post("/tokenize", {"messages": messages})[1]["tokens"]
            text = served.post("/detokenize", {"tokens": tokens})[1]["prompt"]
            of_call, of_result = text.partition("id: ")[2][:9], text.partition("sunny of ")[2]
            assert of_call == of_result and of_call.isalnum() and (of_call == id) == (len(id) == 9)
        # The template's own words.
        messages = [{"role": "assistant", "content": "Hello"}, *user]
        status, answer = served.post("/v1/chat/completions", {**CHAT, "messages": messages})
        assert status == 400 and "(Conversations must begin with a user!)" in answer["error"]["message"]


def test_a_call_that_is_required_in_tags(demo_ir: Path, tmp_path: Path) -> None:
    path = tmp_path / "coder.jinja"
    path.write_text(TEMPLATE + "{# <function=example> <parameter=x> #}", encoding="utf-8")
    with serving(demo_ir, "--chat-template", path, "--served-model-name", "demo") as served:
        body = {**CHAT, "tools": TOOLS, "tool_choice": NAMED, "logprobs": True, "max_tokens": 200}
        status, answer = served.post("/v1/chat/completions", body)
    assert status == 200, answer
    [one] = answer["choices"]
    assert "<function=weather>" in "".join(entry["token"] for entry in one["logprobs"]["content"])
    [call] = one["message"]["tool_calls"]
    check_call(call)
