"""The form of answers, and log probabilities, over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve.conftest import Served

from ovspec.pipeline.outline import Outline
from ovspec.serve.served_model import ServedModel
from ovspec_models import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify

PROMPT = "Once upon a time, there was a little girl"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 60}


@pytest.mark.parametrize(
    "form",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
            }
        },
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]?"}, "temperature": 1, "seed": 4},
    ],
)
def test_json_of_a_schema(served: Served, form: dict[str, Any]) -> None:
    for more in ({}, {"verify": "dense"}, {"num_assistant_tokens": 0}):
        status, answer = served.post("/v1/chat/completions", {**CHAT, **form, **more})
        assert status == 200, answer
        value = json.loads(answer["choices"][0]["message"]["content"])
        assert set(value) == {"n", "ok"} and 0 <= value["n"] <= 99 and isinstance(value["ok"], bool)
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_other_forms(served: Served) -> None:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 30}
    for form, good in (
        ({"guided_choice": ["red", "dark blue"]}, ("red", "dark blue")),
        ({"guided_regex": "[0-1]{2}"}, ("00", "01", "10", "11")),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "b" "c"'}}, ("a", "bc")),
    ):
        assert served.post("/v1/completions", {**body, **form})[1]["choices"][0]["text"] in good
    status, answer = served.post("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}})
    assert status == 200 and answer["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"], ids=ascii)
def test_an_event_is_one_line_for_every_reader(served: Served, end: str) -> None:
    """httpx cuts lines at these characters too, and clients that read streams with it."""
    text = f"a{end}b"
    choice = {"prompt": PROMPT, "structured_outputs": {"choice": [text]}, "logprobs": 0}
    schema = {"type": "json_schema", "name": "a", "schema": {"const": text}}
    item = {"input": PROMPT, "text": {"format": schema}, "max_output_tokens": 60}
    for path, body in (("completions", choice), ("responses", item)):
        asked = {"model": "demo", **body, "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/{path}", json=asked, timeout=60) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        pieces = [one["choices"][0]["text"] if "choices" in one else one.get("delta", "") for one in events]
        assert "".join(pieces).strip('"') == text


def test_echo_has_the_prompt_and_its_log_probabilities(served: Served) -> None:
    body = {"model": "demo", "prompt": PROMPT, "logprobs": 2, "max_tokens": 6, "temperature": 0}
    _, plain = served.post("/v1/completions", body)
    _, echoed = served.post("/v1/completions", {**body, "echo": True})
    generated, whole = plain["choices"][0], echoed["choices"][0]
    assert whole["text"] == PROMPT + generated["text"]
    known = whole["logprobs"]
    assert known["token_logprobs"][0] is None and known["top_logprobs"][0] is None
    assert "".join(known["tokens"]) == whole["text"]
    for offset, token in zip(known["text_offset"], known["tokens"], strict=True):
        assert whole["text"][offset : offset + len(token)] == token
    assert known["token_logprobs"][-6:] == pytest.approx(generated["logprobs"]["token_logprobs"], abs=1e-4)
    # The answer as a prompt: what a pass over the prompt finds is what drafting and verification found.
    _, again = served.post(
        "/v1/completions", {**body, "prompt": whole["text"], "echo": True, "max_tokens": 0}
    )
    assert again["choices"][0]["text"] == whole["text"]
    assert again["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(
        known["token_logprobs"][1:], abs=1e-4
    )
    assert again["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_as_of_vllm(served: Served) -> None:
    _, answer = served.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 1})
    _, echoed = served.post(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "logprobs": 1, "echo": True}
    )
    first, *rest = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    for entry, value in zip(rest, echoed["choices"][0]["logprobs"]["token_logprobs"][1:], strict=True):
        own = next(iter(entry.values()))
        assert own["logprob"] == pytest.approx(value, abs=1e-4)
        assert any(one["rank"] == 1 for one in entry.values())
    asked = {**CHAT, "prompt_logprobs": 0}
    _, chat = served.post("/v1/chat/completions", {**asked, "max_tokens": 1})
    assert chat["prompt_logprobs"][0] is None and len(chat["prompt_logprobs"]) > 5
    for field in ("max_tokens", "max_completion_tokens"):
        fields = {name: value for name, value in asked.items() if name != "max_tokens"}
        _, read = served.post("/v1/chat/completions", {**fields, field: 0})
        assert read["prompt_logprobs"] == chat["prompt_logprobs"]
        assert read["choices"][0]["message"]["content"] == "" and read["usage"]["completion_tokens"] == 0
        assert read["choices"][0]["finish_reason"] == "length"
    assert served.post("/v1/completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True})[0] == 400


def test_a_fingerprint_says_whether_a_seed_gives_the_same(served: Served, demo_ir: Path) -> None:
    body = {"model": "demo", "max_tokens": 2, "stream": True}
    with served.client() as client:
        chat = client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], **body)
        texts = client.completions.create(prompt=PROMPT, **body)
        found = {chunk.system_fingerprint for stream in (chat, texts) for chunk in stream}
    found.add(served.post("/v1/chat/completions", CHAT)[1]["system_fingerprint"])
    assert len(found) == 1 and all(re.fullmatch("fp_[0-9a-f]{10}", one) for one in found)
    known = {
        ServedModel(Outline(ModelInfo.read(demo_ir), verify, None), demo_ir, "demo").fingerprint
        for verify in ("dense", "dense", SparseVerify(budget=64))
    }
    assert len(known) == 2


def test_a_chat_that_is_read_alone_streams_no_text(served: Served) -> None:
    chunks = list(served.client().chat.completions.create(**{**CHAT, "max_tokens": 0, "stream": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "length"
