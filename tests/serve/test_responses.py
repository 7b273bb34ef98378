"""`/v1/responses`, as the official client uses it: the same answers as those of chats, in items."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from serve.conftest import Served, serving

from ovspec.serve.output.message_parser import MessageParser, MessageStream
from ovspec.serve.output.response_output import ResponseOutput
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.response_bodies import ResponseBody
from ovspec.serve.response_objects import _renamed
from ovspec.serve.structure import grammar_of
from ovspec.serve.tools import ToolUse

PROMPT = "Once upon a time, there was a little girl named Lily. She"
ASKED: dict[str, Any] = {"model": "demo", "input": PROMPT, "temperature": 0, "max_output_tokens": 24}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Place(BaseModel):
    """What an answer is to be."""

    days: int
    sunny: bool


def chat_text(served: Served, messages: list[dict[str, Any]], tokens: int = 24) -> str:
    body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": tokens}
    return served.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]


def test_the_text_is_that_of_a_chat(served: Served) -> None:
    client = served.client()
    answer = client.responses.create(**ASKED)
    expected = chat_text(served, [{"role": "user", "content": PROMPT}])
    assert answer.output_text == expected and answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 24 and answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.metrics["verify"] == "commit" and not answer.store
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": PROMPT}]},
        *[item.model_dump(exclude_none=True) for item in answer.output],
        {"role": "user", "content": " Then"},
    ]
    again = client.responses.create(**{**ASKED, "input": items}, instructions="Be kind. ")
    messages = [("system", "Be kind. "), ("user", PROMPT), ("assistant", expected), ("user", " Then")]
    assert again.output_text == chat_text(served, [{"role": r, "content": c} for r, c in messages])
    assert served.post("/v3/responses", {"input": PROMPT, "max_output_tokens": 1})[0] == 200


@pytest.mark.parametrize("more", [{}, {"top_logprobs": 2}], ids=["text", "logprobs"])
def test_a_stream_ends_with_the_whole_answer(served: Served, more: dict[str, Any]) -> None:
    client = served.client()
    include = {"include": ["message.output_text.logprobs"]} if more else {}
    whole = client.responses.create(**ASKED, **more, **include)
    events = list(client.responses.create(**ASKED, **more, **include, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = list(dict.fromkeys(event.type for event in events))
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    last = events[-1].response
    assert "".join(event.delta for event in deltas) == last.output_text == whole.output_text
    assert last.usage == whole.usage and len(deltas) > 3
    logprobs = last.output[0].content[0].logprobs
    assert [one.token for one in logprobs] == [one.token for one in whole.output[0].content[0].logprobs]
    assert len(logprobs) == (24 if more else 0) == sum(len(event.logprobs) for event in deltas)
    if more:
        assert "".join(one.token for one in logprobs) == whole.output_text
        assert all(len(one.top_logprobs) == 2 for one in logprobs)


def test_the_clients_own_helpers(served: Served) -> None:
    client = served.client()
    with client.responses.stream(**ASKED) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert texts[-1] == client.responses.create(**ASKED).output_text
    parsed = client.responses.parse(**{**ASKED, "max_output_tokens": 60}, text_format=Place)
    assert isinstance(parsed.output_parsed, Place) and parsed.status == "completed"
    free = client.responses.create(
        **{**ASKED, "max_output_tokens": 40}, text={"format": {"type": "json_object"}}
    )
    assert free.output_text.startswith("{")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "name": "weather"}], ids=["any", "named"]
)
def test_calls_and_their_results(served: Served, choice: Any) -> None:
    client = served.client()
    asked = {**ASKED, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    asked["max_output_tokens"] = 60
    answer = client.responses.create(**asked)
    [call] = answer.output
    assert call.type == "function_call" and call.status == answer.status == "completed"
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    events = list(client.responses.create(**asked, stream=True))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == events[-1].response.output[0].arguments == call.arguments
    items = [
        {"role": "user", "content": PROMPT},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    free = {**WEATHER, "strict": False}
    output = client.responses.create(**{**ASKED, "input": items, "tools": [free]}).output
    assert output[-1].type == "message" and output[-1].content[0].text.strip()


def test_items_become_messages() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"}
    items = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me."}]},
        {**call, "call_id": "a"},
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "So"}]},
        {**call, "call_id": "c"},
    ]
    chat = ResponseBody.of_fields({"input": items, "seed": 5, "top_k": 3, "stop": "x"}).chat()
    shown = [
        (one.role, one.text, one.reasoning_content, [tool.id for tool in one.tool_calls or ()])
        for one in chat.messages
    ]
    assert shown == [
        ("developer", "Be kind.", None, []),
        ("assistant", "Let me.", "Hm", ["a", "b"]),
        ("tool", "1", None, []),
        ("tool", "2", None, []),
        ("assistant", "", "So", ["c"]),
    ]
    assert (chat.seed, chat.top_k, chat.stop) == (5, 3, ["x"])


THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]}
CALL = {"type": "function_call", "name": "f", "call_id": "a", "arguments": "{}"}


def test_reasoning_in_parts_is_one() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So"}]}
    said = {"role": "assistant", "content": "x"}
    body = ResponseBody.of_fields({"input": [{"role": "user", "content": "Hi"}, THOUGHT, summary, said]})
    assert [one.reasoning_content for one in body.chat().messages] == [None, "Hm\nSo"]


@pytest.mark.parametrize(
    ("items", "place"),
    [
        ([THOUGHT], 0),
        ([{"role": "user", "content": "Hi"}, THOUGHT, {"role": "user", "content": "Hi"}], 1),
        ([CALL, THOUGHT, {"type": "function_call_output", "call_id": "a", "output": "1"}, CALL], 1),
    ],
    ids=["end", "user", "output"],
)
def test_reasoning_that_belongs_to_nothing_is_refused(items: list[dict[str, Any]], place: int) -> None:
    with pytest.raises(ApiError, match=f"^input.{place}: no message or call") as refused:
        ResponseBody.of_fields({"input": items}).chat()
    assert refused.value.status == 400 and refused.value.param == "input"


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        (
            {"input": [{"role": "user", "content": "x"}, CALL, {**CALL, "arguments": "{"}]},
            'input.2.function_call.arguments="{": is no JSON',
        ),
        (
            {"text": {"format": {"type": "text", "name": "a"}}},
            "text.format=an object of 2: name is for type json_schema, not text",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema: is missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "input.0.message.content.0.text=5: ",
        ),
        ({"input": 5}, "input=5: "),
        ({"input": "a " * 9000}, "input: "),
    ],
)
def test_refusals_name_what_was_sent(served: Served, fields: dict[str, Any], begin: str) -> None:
    status, answer = served.post("/v1/responses", {**ASKED, **fields})
    assert status == 400 and answer["error"]["message"].startswith(begin), answer


def test_a_refusal_keeps_what_it_says_beside_its_field() -> None:
    found = _renamed(ApiError(429, "messages: wait", "messages", "rate_limit_exceeded", 3))
    shown = (found.status, found.message, found.param, found.code, found.retry_after)
    assert shown == (429, "input: wait", "input", "rate_limit_exceeded", 3)


FREE = {**WEATHER, "strict": False}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [FREE]}, False),
        ({"tools": [FREE], "text": {"format": {"type": "text"}}}, False),
        ({"tools": [WEATHER], "tool_choice": "none"}, False),
        ({"parallel_tool_calls": False}, False),
        ({"tools": [WEATHER]}, True),
        ({"tools": [FREE], "parallel_tool_calls": False}, True),
        ({"tools": [FREE], "tool_choice": "required"}, True),
        ({"text": {"format": {"type": "json_object"}}}, True),
    ],
)
def test_only_grammars_take_the_lane_of_grammars(fields: dict[str, Any], expected: bool) -> None:
    body = ResponseBody.of_fields({"input": "x", **fields})
    use = ToolUse.of(body.chat(), "", grammar_of(body.chat()))
    assert body.has_grammar == expected == (use.grammar is not None)


def test_reasoning_text_and_calls_are_items_in_this_order() -> None:
    def made() -> ResponseOutput:
        return ResponseOutput(
            MessageStream(MessageParser({"f": {}}, reasons=True, starts_in_reasoning=False))
        )

    text = '<think>\nHm\n</think>\n\nSo.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    whole, stream = made(), made()
    logprobs = [{"token": letter} for letter in text]
    whole.add(text, logprobs, "stop")
    for at, letter in enumerate(text):
        stream.add(letter, logprobs[at : at + 1], "stop" if at + 1 == len(text) else None)
    for output in (whole, stream):
        thought, message, call = output.items
        assert message["content"][0]["logprobs"] == logprobs
        assert thought["content"][0]["text"] == "Hm" and message["content"][0]["text"] == "So."
        assert json.loads(call["arguments"]) == {"a": 1} and call["status"] == "completed"
    for reason in ("length", "stop"):  # a stop string, or the model, may end it in a call
        cut = made()
        cut.add(text[:-20], [], reason)
        assert [item["status"] for item in cut.items] == ["completed", "completed", "incomplete"]


def test_reasoning_of_a_model_that_reasons(demo_ir: Any, tmp_path: Any) -> None:
    template = tmp_path / "reasons.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}<think>\n", encoding="utf-8")
    with serving(demo_ir, "--chat-template", template, "--served-model-name", "demo") as served:
        answer = served.client().responses.create(**ASKED)
        assert [item.type for item in answer.output] == ["reasoning"]
        assert answer.usage.output_tokens_details.reasoning_tokens == 24 and answer.output_text == ""
        events = list(served.client().responses.create(**ASKED, stream=True))
        text = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        assert text == answer.output[0].content[0].text


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]}, "input"),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input.0.type=\"item_reference\": is not supported; possible: 'message', 'function_call'",
        ),
        ({"input": ["x"]}, 'input.0="x": expected an object with a type'),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}]}, "input"),
        ({"input": "a " * 9000}, "input"),
        ({"max_output_tokens": 9000}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        (
            {"tools": [{"type": "web_search"}]},
            "tools.0.type=\"web_search\": is not supported; possible: 'function'",
        ),
        (
            {"tool_choice": {"type": "web_search"}},
            "tool_choice.type=\"web_search\": is not supported; possible: 'function'",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "rm"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 5}}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text"),
        ({"truncation": "auto"}, "truncation"),
        ({"logit_bias": {"4096": 1}}, "logit_bias"),
        ({"include": ["file_search_call.results"]}, "include"),
    ],
)
def test_what_can_not_be_done_is_refused(served: Served, fields: dict[str, Any], begin: str) -> None:
    param = begin.partition(".")[0].partition("=")[0]
    for stream in (False, True):
        status, answer = served.post("/v1/responses", {**ASKED, **fields, "stream": stream})
        assert status == 400, answer
        message = answer["error"]["message"]
        assert answer["error"]["param"] == param and message.startswith(begin) and "\n" not in message
    with pytest.raises(openai.BadRequestError):
        served.client().responses.create(**{**ASKED, "extra_body": fields})
