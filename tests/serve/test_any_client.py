"""What clients send beside a request: harmless fields, null, old names, other paths."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types import chat, responses
from openai.types.completion_create_params import CompletionCreateParamsBase
from serve.conftest import Served, serving
from tiers import by_tier

from ovspec.serve.requests.bodies import ChatBody, CompletionBody, StreamOptions
from ovspec.serve.requests.messages import CalledTool, ImagePart, Message, TextPart
from ovspec.serve.requests.response_bodies import (
    ResponseBody,
    ResponseCall,
    ResponseCallOutput,
    ResponseEffort,
    ResponseFunction,
    ResponseImage,
    ResponseReasoning,
    ResponseText,
)
from ovspec.serve.requests.strict_body import StrictBody

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 4}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1.0, "seed": -1, "top_k": -1, "stop": "", "max_tokens": 4.0},
        dict.fromkeys(
            (
                "temperature",
                "n",
                "stream",
                "presence_penalty",
                "stop",
                "tools",
                "tool_choice",
                "logprobs",
                "user",
            )
        ),
        {"messages": [{"role": "developer", "content": "Be kind."}, *CHAT["messages"]]},
        {
            "messages": [
                {"role": "user", "name": "bob", "type": "message", "content": "Hi", "tool_calls": None}
            ]
        },
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
        {"add_generation_prompt": False},
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto"},
    ],
)
def test_harmless_fields(served: Served, fields: dict[str, Any]) -> None:
    status, answer = served.post("/v1/chat/completions", {**CHAT, **fields})
    assert status == 200, answer


def test_text_parts_are_lines(served: Served) -> None:
    parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in ("a", "b")]
    both = [
        served.post("/tokenize", {"messages": [{"role": "user", "content": content}]})[1]["tokens"]
        for content in (parts, "a\nb")
    ]
    assert both[0] == both[1]


def test_an_answer_goes_on_with_its_last_message(served: Served) -> None:
    said = {"role": "assistant", "content": "Once upon a time, there was"}
    body = {**CHAT, "messages": [said], "continue_final_message": True, "temperature": 0}
    _, chat = served.post("/v1/chat/completions", body)
    plain = {"prompt": said["content"], "max_tokens": 4, "temperature": 0}
    _, text = served.post("/v1/completions", plain)
    assert chat["choices"][0]["message"]["content"] == text["choices"][0]["text"]
    assert served.post("/v1/chat/completions", {**CHAT, "continue_final_message": True})[0] == 400


def test_unknown_fields_are_ignored_and_named(served: Served, demo_ir: Path, template: Path) -> None:
    messages = [{"role": "user", "content": "a", "mood": 1}]
    body = {**CHAT, "messages": messages, "frobnicate": 1, "größe\n": 2, " wide\n": 3, "": 4}
    for stream in (False, True):
        request = urllib.request.Request(
            f"{served.url}/v1/chat/completions",
            json.dumps({**body, "stream": stream}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            named = answer.headers["X-Ignored-Fields"]
        assert set(named.split(", ")) == {"mood", "frobnicate", r"gr\u00f6\u00dfe\n", r'" wide\n"', '""'}
    served.wait_for(lambda: any("WARNING" in line and "frobnicate" in line for line in served.lines))
    with serving(demo_ir, "--chat-template", template, "--strict-fields") as strict:
        status, answer = strict.post("/v1/chat/completions", body)
        assert status == 400 and answer["error"]["code"] == "unknown_field"


@pytest.mark.parametrize(
    ("body", "of_openai"),
    [
        (ChatBody, chat.completion_create_params.CompletionCreateParamsBase),
        (StreamOptions, chat.ChatCompletionStreamOptionsParam),
        (Message, chat.ChatCompletionAssistantMessageParam),
        (CalledTool, chat.ChatCompletionMessageFunctionToolCallParam),
        (TextPart, chat.ChatCompletionContentPartTextParam),
        (ImagePart, chat.ChatCompletionContentPartImageParam),
        (CompletionBody, CompletionCreateParamsBase),
        (ResponseBody, responses.response_create_params.ResponseCreateParamsBase),
        (ResponseFunction, responses.FunctionToolParam),
        (ResponseImage, responses.ResponseInputImageParam),
        (ResponseCall, responses.ResponseFunctionToolCallParam),
        (ResponseCallOutput, responses.response_input_item_param.FunctionCallOutput),
        (ResponseReasoning, responses.ResponseReasoningItemParam),
        (ResponseText, responses.ResponseTextConfigParam),
        (ResponseEffort, responses.response_create_params.Reasoning),
    ],
    ids=lambda kind: kind.__name__,
)
def test_no_field_of_openais_is_unknown(body: type[StrictBody], of_openai: type) -> None:
    known = {field.alias or name for name, field in body.model_fields.items()}
    assert set(get_type_hints(of_openai)) <= known


@pytest.mark.parametrize("path", by_tier(["chat/completions", "completions", "responses"], ["responses"]))
def test_fields_of_openais_without_effect_are_taken_and_others_refused(served: Served, path: str) -> None:
    given = {"prompt": "Once", "messages": CHAT["messages"], "input": "Once"}
    field = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}[path]
    plain = {"model": "demo", field: given[field]}
    taken = {
        "prompt_cache_key": "a",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit"},
        "safety_identifier": "b",
        "frobnicate": None,
    }
    data = json.dumps({**plain, **taken}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{served.url}/v1/{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["X-Ignored-Fields"] is None
    refused = {"moderation": {"model": "omni-moderation-latest"}}
    if path == "responses":
        refused |= {"image": {}, "background_options": {"completion_window": "2h"}}
    for name, value in refused.items():
        status, error = served.post(f"/v1/{path}", {**plain, name: value})
        assert status == 400 and error["error"]["param"] == name
        assert "is not supported" in error["error"]["message"]


def test_other_paths(served: Served) -> None:
    assert json.loads(served.get("/v1/models/demo"))["id"] == "demo"
    assert json.loads(served.get("/v3/models"))["data"][0]["id"] == "demo"
    assert json.loads(served.get("/version"))["version"]
    assert json.loads(served.get("/ping"))["status"] == "ok"
    assert served.post("/v3/chat/completions", CHAT)[0] == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):
        served.get("/v1/models/other")


def test_usage_is_null_up_to_the_last_chunk(served: Served) -> None:
    options = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(served.client().chat.completions.create(**options))
    assert all("usage" in chunk.model_fields_set for chunk in chunks)
    assert [chunk.usage is None for chunk in chunks] == [*[True] * (len(chunks) - 1), False]


def test_without_a_temperature_the_answer_is_greedy(served: Served) -> None:
    texts = [
        served.post("/v1/chat/completions", {**CHAT, "max_tokens": 20, **more})[1]["choices"][0]["message"]
        for more in ({}, {"seed": 5}, {"temperature": 0})
    ]
    assert texts[0] == texts[1] == texts[2]
