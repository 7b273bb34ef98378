"""Requests that are refused: OpenAI's error object, with the name of the field."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import openai
import pytest
from serve.conftest import Served
from serve.soak import resident_mb
from settings import F32

import ovspec
from ovspec.serve.app import Server
from ovspec.serve.backend import in_this_process
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import CompletionBody
from ovspec.serve.served_model import ServedModel
from ovspec.serve.server_limits import ServerLimits

USER = [{"role": "user", "content": "Once"}]
FIELDS = {
    "temperature": ({"temperature": 2.5}, "temperature"),
    "negative temperature": ({"temperature": -0.1}, "temperature"),
    "a word for a number": ({"temperature": "hot"}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "n": ({"n": 0}, "n"),
    "greedy n": ({"n": 2, "temperature": 0}, "n"),
    "max_tokens": ({"max_tokens": -1}, "max_tokens"),
    "too many tokens": ({"max_tokens": 9000}, "max_tokens"),
    "both limits": ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    "penalty": ({"presence_penalty": 3}, "presence_penalty"),
    "seed": ({"seed": 2**64}, f"seed={2**64}: input should be less than or equal to {2**64 - 1}"),
    "stop": ({"stop": [1]}, "stop"),
    "stops": ({"stop": ["a"] * 17}, "stop"),
    "long stops": ({"stop": ["a" * 2000] * 9}, "stop"),
    "stop tokens": ({"stop_token_ids": [5] * 1025}, "stop_token_ids"),
    "many messages": ({"messages": USER * 4097}, "messages"),
    "many parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 4097}]},
        "messages",
    ),
    "a number of many digits": ({"top_k": 10**4000}, "top_k"),
    "stop token": ({"stop_token_ids": [4096]}, "stop_token_ids"),
    "stop token that nothing stops at": (
        {"stop_token_ids": [0, 4096], "ignore_eos": True, "min_tokens": 1, "max_tokens": 8},
        "stop_token_ids",
    ),
    "no token before the stop": ({"stop_token_ids": list(range(4096)), "min_tokens": 1}, "stop_token_ids"),
    "top_logprobs": ({"top_logprobs": 2}, "top_logprobs"),
    "many top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "stream_options": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "tools": ({"tools": [{"type": "function", "function": {}}]}, "tools"),
    "response_format": ({"response_format": {"type": "xml"}}, "response_format"),
    "a word": ({"response_format": "json"}, 'response_format="json": expected an object'),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
        "response_format",
    ),
    "schema of another type": (
        {"response_format": {"type": "json_object", "json_schema": {"schema": {"type": "object"}}}},
        "response_format",
    ),
    "json_object of no schema": (
        {"response_format": {"type": "json_object", "schema": 123}},
        "response_format",
    ),
    "json_object of an unknown type": (
        {"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}},
        "response_format",
    ),
    "schema of a text": (
        {"response_format": {"type": "text", "schema": {"type": "object"}}},
        "response_format",
    ),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "unsatisfiable": ({"guided_json": {"enum": []}}, "guided_json"),
    "required of another type": (
        {"guided_json": {"type": "object", "properties": {}, "required": [[]]}},
        "guided_json",
    ),
    "half a tag": ({"response_format": {"type": "structural_tag", "structures": [{}]}}, "response_format"),
    "left recursion": ({"guided_grammar": 'root ::= root "a" | "b"'}, "guided_grammar"),
    "two forms": ({"guided_regex": "a", "structured_outputs": {"choice": ["a"]}}, "guided_regex"),
    "minimum": ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
    "verify": ({"verify": "fast"}, "verify"),
    "draft tokens": ({"num_assistant_tokens": 64}, "num_assistant_tokens"),
    "levels without tokens": ({"tree_depth": 3}, "num_assistant_tokens"),
    "children without levels": ({"branching_factor": 2}, "branching_factor"),
    "no children": ({"tree_depth": 2, "branching_factor": 0}, "branching_factor"),
    "acceptance rule": ({"acceptance_rule": "best"}, "acceptance_rule"),
    "acceptance rule of greedy decoding": (
        {"acceptance_rule": "block", "temperature": 0},
        "acceptance_rule='block' is a rule for sampling: set temperature above 0",
    ),
    "a temperature that is 0 in 32 bits": ({"temperature": 1e-300}, "temperature"),
    "more than all": ({"min_tokens": 10}, "min_tokens=10: the answer may have 9 tokens; lower it"),
    "more than all that may be completed": (
        {"min_tokens": 4, "max_tokens": None, "max_completion_tokens": 3},
        "min_tokens=4: the answer may have 3",
    ),
    "no messages": ({"messages": []}, "messages"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    "picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages",
    ),
    "sound": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages.0.content.0.type=\"input_audio\": is not supported; possible: 'text', 'image_url'",
    ),
    "a refusal": (
        {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]}]},
        "messages.0.content.0.type=\"refusal\": is not supported; possible: 'text', 'image_url'",
    ),
    "a part without a type": (
        {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
        "messages.0.content.0=an object of 1: expected an object with a type",
    ),
    "content": (
        {"messages": [{"role": "user", "content": 5}]},
        "messages.0.content=5: input should be a valid string",
    ),
    "a custom tool": (
        {"tools": [{"type": "custom", "custom": {"name": "a"}}]},
        "tools.0.type=\"custom\": is not supported; possible: 'function'",
    ),
    "allowed tools": (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        "tool_choice.type=\"allowed_tools\": is not supported; possible: 'function'",
    ),
    "half a character": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_field_is_named(served: Served, name: str) -> None:
    fields, message = FIELDS[name]
    status, body = served.post(
        "/v1/chat/completions", {"model": "demo", "messages": USER, "max_tokens": 9} | fields
    )
    error = body["error"]
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == message.partition(".")[0].partition("=")[0]
    assert error["message"].startswith(message) and "\n" not in error["message"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, -2], "prompt.1=-2: input should be greater than or equal to 0"),
        ([1, "a"], 'prompt.1="a": input should be a valid integer'),
        (["a", 1], "prompt.1=1: input should be a valid string"),
        ([[1], [2, 1.5]], "prompt.1.1=1.5: input should be a valid integer"),
        ([[1], "a"], 'prompt.1="a": input should be a valid list'),
        ({"a": 1}, "prompt=an object of 1: input should be a valid string"),
        ([None], "prompt.0=null: input should be a valid integer"),
    ],
)
def test_what_is_wrong_with_a_prompt_is_named(served: Served, prompt: object, message: str) -> None:
    status, body = served.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert status == 400 and body["error"]["message"] == message and body["error"]["param"] == "prompt"


def test_supported_values_of_unsupported_fields_pass(served: Served) -> None:
    off = {
        "tools": None,
        "response_format": {"type": "text"},
        "logit_bias": None,
        "store": False,
        "user": "me",
    }
    message = {"role": "assistant", "content": "Once", "refusal": None, "tool_calls": None}
    body = {"model": "demo", "messages": [message, *USER], "max_tokens": 2, **off}
    assert served.post("/v1/chat/completions", body)[0] == 200


def test_block_verification_goes_with_dense_verification_only(served: Served) -> None:
    body = {"model": "demo", "messages": USER, "max_tokens": 8, "num_assistant_tokens": 3, "temperature": 1}
    dense, commit = (
        served.post("/v1/chat/completions", {**body, "acceptance_rule": "block", "verify": verify})
        for verify in ("dense", "commit")
    )
    assert dense[0] == 200 and not dense[1]["metrics"]["is_lossy"]
    assert commit[0] == 400 and "contradicts verify='commit'" in commit[1]["error"]["message"]


def test_a_commit_behind_sparse_prompts_is_refused(demo_ir: Path) -> None:
    """The routes of a server, without a process of its own."""

    def load() -> ovspec.LLMPipeline:
        return ovspec.LLMPipeline(demo_ir, "CPU", verify="sparse", prefill="sparse", **F32)

    async def ask(transport: httpx.ASGITransport, verify: str) -> httpx.Response:
        body = {"prompt": "Once", "max_tokens": 2, "verify": verify}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/completions", json=body)

    with in_this_process(load, max_num_seqs=1) as backend:
        app = Server(ServedModel(backend.requests, demo_ir, "demo"), backend, ServerLimits()).app()
        dense, commit = (asyncio.run(ask(httpx.ASGITransport(app), verify)) for verify in ("dense", "commit"))
    assert dense.status_code == 200 and commit.status_code == 400
    assert "the cache of a sparse prompt is not the dense one" in commit.json()["error"]["message"]


def test_the_client_raises_its_own_errors(served: Served) -> None:
    client = served.client()
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.completions.create(model="demo", prompt="Once", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match=r"'gpt-9'.*'demo'"):
        client.completions.create(model="gpt-9", prompt="Once")


def test_a_prompt_that_never_fits_is_refused_with_the_limit(served: Served) -> None:
    words = "Lily saw a bird. " * 2500
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8192 tokens") as bad:
        served.client().completions.create(model="demo", prompt=words)
    assert bad.value.code == "context_length_exceeded" and bad.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match=r"max_tokens: 8183 tokens.*at most 9") as bad:
        served.client().completions.create(model="demo", prompt=[5] * 8183)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match=r"8192.*ask for at most") as bad:
        served.client().completions.create(model="demo", prompt="Once", max_tokens=8192)
    assert bad.value.param == "max_tokens"


@pytest.mark.parametrize("prompt", [[], "", [4096], [-1], ["Once", 3], [[]], None, {"a": 1}])
def test_prompts_of_other_kinds(served: Served, prompt: object) -> None:
    status, body = served.post("/v1/completions", {"model": "demo", "prompt": prompt})
    assert status == 400 and body["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"prompt": "x", "n": 1e400}',
        b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "metadata": -Infinity}',
        b'{"prompt": "x", "max_tokens": 1, "max_tokens": 2}',
        b'{"prompt": "x", "verify": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'\xef\xbb\xbf{"prompt": "x"}',
        '{"prompt": "x"}'.encode("utf-16"),
    ],
    ids=repr,
)
def test_bodies_that_are_no_json_objects_of_fields(served: Served, body: bytes) -> None:
    status, answer = served.post("/v1/completions", body)
    assert status == 400 and 0 < len(answer["error"]["message"]) < 1100


@pytest.mark.parametrize("name", [r"\ud800", "k" * 10**5, "a\\nb", "\N{BOOKS}" * 90], ids=ascii)
def test_unknown_names_are_shown_short_whatever_they_are(served: Served, name: str) -> None:
    body = f'{{"prompt": "x", "max_tokens": 1, "{name}": 1}}'.encode()
    for path in ("/v1/completions", "/tokenize"):
        taken = body if path != "/tokenize" else body.replace(b'"max_tokens": 1, ', b"")
        answer = httpx.post(served.url + path, content=taken, headers={"Content-Type": "application/json"})
        shown = answer.headers["X-Ignored-Fields"]
        assert answer.status_code == 200 and shown.isascii() and shown.isprintable() and 0 < len(shown) <= 80
    with pytest.raises(ApiError) as refused:
        CompletionBody.parse(body, strict_fields=True)
    message = refused.value.body()["error"]["message"]
    assert refused.value.status == 400 and message.isprintable() and 0 < len(message) < 1100


def test_a_refusal_takes_no_work_that_its_body_does_not(served: Served) -> None:
    """128,000 answers were tokenized and made before they were counted: 366 MB and seconds for 40 kB."""
    body = {"prompt": ["a"] * 8000, "n": 16}
    assert served.post("/v1/completions", body)[0] == 400  # the first one loads code
    before, began = resident_mb(served.process.pid), time.perf_counter()
    status, answer = served.post("/v1/completions", body)
    assert status == 400 and answer["error"]["param"] == "n"
    assert "128000 answers" in answer["error"]["message"]
    assert resident_mb(served.process.pid) < before + 8 and time.perf_counter() - began < 0.5


def test_pages_of_other_origins_cannot_post(served: Served) -> None:
    body = b'{"model": "demo", "prompt": "Once"}'
    status, answer = served.post("/v1/completions", body, **{"Content-Type": "text/plain"})
    assert status == 415 and "application/json" in answer["error"]["message"]


def test_unknown_paths_and_methods(served: Served) -> None:
    for path in ("/v1/embeddings", "/v3/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score"):
        status, answer = served.post(path, {"input": "x"})
        assert status == 404
        assert answer["error"]["message"].startswith(
            f"POST {path}: ovspec serves no embeddings and no rerank"
        )
    status, answer = served.post("/v1/images/generations", {"prompt": "x"})
    assert status == 404 and answer["error"]["message"] == "POST /v1/images/generations: Not Found"
    assert served.post("/health", {})[0] == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 400),
        ("", 400),
        ("[", 400),
    ],
)
def test_a_foreign_name_of_this_machine_is_refused(served: Served, host: str, status: int) -> None:
    """Without a key, a page whose name resolves to this machine must not read the answers."""
    assert httpx.get(f"{served.url}/v1/models", headers={"Host": host}).status_code == status
