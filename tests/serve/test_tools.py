"""Calls of tools: made by grammar where they are required, sent back, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from serve.conftest import TEMPLATE, Served, serving

from ovspec.serve.tools import GENERIC, HERMES, LIST, LLAMA, QWEN_CODER, form_of


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


def test_a_call_that_a_stop_string_cut_is_not_to_be_made(served: Served) -> None:
    """Its arguments are no JSON, so the reason is not the one that asks for the call."""
    body = {**CHAT, "tools": TOOLS, "tool_choice": NAMED, "stop": "days"}
    [one] = served.post("/v1/chat/completions", body)[1]["choices"]
    arguments = one["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments.startswith('{"city": ') and "days" not in arguments and one["finish_reason"] == "stop"
    chunks = list(served.client().chat.completions.create(**body, stream=True))
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]


FORM = {
    "type": "object",
    "properties": {"a": {"const": 1}, "mood": {"enum": ["good", "bad"]}},
    "required": ["a", "mood"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "strict", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["strict", "not strict"]
)
def test_a_call_or_an_answer_of_the_form(served: Served, strict: bool) -> None:
    """As OpenAI's parse() has it: tools say nothing of the answer's form, nor that of calls."""
    tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": strict}}, TOOLS[1]]
    form = {"type": "json_schema", "json_schema": {"name": "form", "strict": True, "schema": FORM}}
    body = {**CHAT, "max_tokens": 120, "tools": tools, "response_format": form, "temperature": 1.5}
    found: list[Any] = []
    for seed in range(4):
        status, answer = served.post("/v1/chat/completions", {**body, "n": 8, "seed": seed})
        assert status == 200, answer
        found += answer["choices"]
    calls = [one for one in found if one["finish_reason"] == "tool_calls"]
    texts = [one for one in found if one["finish_reason"] == "stop"]
    for one in calls:
        assert one["message"]["content"] is None
        for call in one["message"]["tool_calls"]:
            check_call(call)
    for one in texts:
        assert "tool_calls" not in one["message"] or not one["message"]["tool_calls"]
        assert json.loads(one["message"]["content"]) in [{"a": 1, "mood": m} for m in ("good", "bad")]
    assert calls and texts
    assert all(one["finish_reason"] == "length" for one in found if one not in (*calls, *texts))
    # Where a call is required, or none is taken, the other can't be had.
    for choice, reason in (("required", "tool_calls"), (NAMED, "tool_calls"), ("none", "stop")):
        status, answer = served.post(
            "/v1/chat/completions", {**body, "tool_choice": choice, "temperature": 0}
        )
        assert status == 200 and answer["choices"][0]["finish_reason"] in (reason, "length"), answer
        assert bool(answer["choices"][0]["message"].get("tool_calls")) == (choice != "none")


def test_a_call_or_an_answer_of_the_form_in_responses(served: Served) -> None:
    kinds = set()
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    form = {"type": "json_schema", "name": "form", "strict": True, "schema": FORM}
    body = {"model": "demo", "input": "Once upon a time", "tools": tools, "text": {"format": form}}
    for seed in range(24):
        asked = {**body, "temperature": 1.5, "seed": seed, "max_output_tokens": 120}
        status, answer = served.post("/v1/responses", asked)
        assert status == 200, answer
        for item in answer["output"] if answer["status"] == "completed" else ():
            kinds.add(item["type"])
            if item["type"] == "function_call":
                check_call({"function": item})
            else:
                assert json.loads(item["content"][0]["text"])["a"] == 1
    assert kinds == {"function_call", "message"}


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
    r"properties.a\r\nb.type": {"properties": {"a\r\nb": {"type": "text"}}},
    r"properties.\ud800": {"properties": {"\ud800": "string"}},
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
            assert answer["error"]["message"].isprintable()


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
        ({"tools": TOOLS, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"tools": TOOLS, "guided_regex": r"[^\s\S]"}, "guided_regex"),
        (
            {"tools": TOOLS, "guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
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


@pytest.mark.slow
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
