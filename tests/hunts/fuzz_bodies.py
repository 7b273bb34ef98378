"""Bodies of requests against the engine's door.

Every body goes the whole way in this process, without a network: the routes, the checks, the tokenizer, and
the engine of the demo pair. Most requests are taken by the engine and aborted before its next step; of one
body in `COMPUTED` at most `TOKENS` tokens are computed, beside a request of somebody else, whose greedy
answer must be the one that it has alone.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import logging
import random
import typing
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hunts.caches import fill_caches
from hunts.fuzz_fields import GOOD, OF_RESPONSES
from hunts.fuzz_hunt import Finding, Given
from hunts.fuzz_values import (
    TEXTS,
    change,
    change_bytes,
    dumps,
    hostile,
    is_larger,
    smaller_bytes,
    smaller_values,
)

import ovspec
from ovspec.engine.engine_thread import EngineThread, OnOutput
from ovspec.engine.requests.request import Request
from ovspec.serve.app import Server
from ovspec.serve.backend import Answers, Backend, in_this_process
from ovspec.serve.requests import bodies
from ovspec.serve.requests.response_bodies import ResponseBody
from ovspec.serve.served_model import ServedModel
from ovspec.serve.server_limits import ServerLimits
from ovspec_models import demo_pair_path

COMPUTED, TOKENS, ALONE = 100, 4, 1000
_PREFIX_CACHE_BYTES = 4 * 2**20
#: What a computed body and the innocent request can hold at most.
_CACHED_TOKENS = 8192
#: Calls after which every request of a tokenizer was used.
_TURNS = 16
#: Larger bodies may take longer; tests of the limits send them.
_MOST_BYTES = 2**18
PATHS = {
    "/v1/completions": bodies.CompletionBody,
    "/v1/chat/completions": bodies.ChatBody,
    "/v1/responses": ResponseBody,
    "/tokenize": bodies.TokenizeBody,
    "/detokenize": bodies.DetokenizeBody,
}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
)
INNOCENT = {"prompt": "Once upon a time, there was a little", "max_tokens": 12, "temperature": 0}
_STORY = (
    "Once",
    " upon",
    " a",
    " time",
    "Lily",
    " saw",
    " the",
    " bird",
    ".",
    "\n",
    " 12",
    "'",
    "ing",
    "é",
    "日",
)

_GENERATING = {"/v1/completions": "prompt", "/v1/chat/completions": "messages", "/v1/responses": "input"}
_ALWAYS = {**_GENERATING, "/detokenize": "tokens"}


def text_of(chance: random.Random) -> str:
    """A prompt or a message."""
    words = (*_STORY, *TEXTS) if chance.random() < 0.1 else _STORY
    return "".join(chance.choice(words) for _ in range(chance.choice((0, 1, 2, 5, 10, 30))))


def field_value(name: str, path: str, chance: random.Random) -> Any:
    """A value for a field, mostly one that is taken."""
    if chance.random() < 0.04:
        return hostile(chance)
    if name == "prompt":
        tokens = [chance.choice((0, 1, 5, 100, 4095)) for _ in range(chance.choice((1, 2, 20)))]
        many = [text_of(chance) for _ in range(chance.choice((0, 1, 2, 9)))]
        return chance.choice((text_of(chance), text_of(chance), tokens, many, [tokens, tokens[:1]]))
    if name == "messages":
        roles = ("system", "user", "user", "assistant")
        return [_message(chance.choice(roles), chance) for _ in range(chance.choice((1, 1, 2, 5)))]
    if name == "logprobs":
        return chance.choice((True, False, None) if "chat" in path else (0, 1, 5, 20))
    if name == "top_logprobs":
        return chance.choice((0, 1, 20))
    if name == "stop" and chance.random() < 0.5:
        return [text_of(chance) or "x" for _ in range(chance.choice((1, 2, 16)))]
    if path == "/v1/responses" and name in OF_RESPONSES:
        return _one_of(OF_RESPONSES[name], chance)
    if name not in GOOD:  # what the server does not support may be null
        return (
            None
            if chance.random() < 0.9
            else chance.choice((False, [], {}, "auto", "none", 1, {"type": "text"}))
        )
    return _one_of(GOOD[name], chance)


def _one_of(values: Sequence[Any], chance: random.Random) -> Any:
    """A copy of one of the values, since `change` changes lists and objects in place."""
    return copy.deepcopy(chance.choice(values))


def _message(role: str, chance: random.Random) -> Given:
    content: Any = text_of(chance)
    if chance.random() < 0.2:
        content = [{"type": "text", "text": text_of(chance)} for _ in range(chance.choice((0, 1, 3)))]
    return {"role": role, "content": content}


def body_of(path: str, chance: random.Random) -> Given:
    """A body that the server may take."""
    names = sorted(PATHS[path].model_fields)
    wanted = chance.sample(names, min(len(names), chance.choice((0, 1, 2, 3, 5, 9))))
    needed = _ALWAYS.get(path) or chance.choice(("prompt", "messages"))
    return {name: field_value(name, path, chance) for name in dict.fromkeys([needed, *wanted])}


class CheckedOnly:
    """Gives requests to an engine and takes them back before its next step.

    Args:
        engine: the engine, whose lock keeps its thread from a step in between.
    """

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine

    @property
    def lives(self) -> bool:
        return self._engine.lives

    def submit(self, request: Request, on_output: OnOutput) -> object:
        with self._engine.lock:
            handle = self._engine.submit(request, on_output)
            self._engine.abort([request.request_id])
        return handle

    def abort(self, ids: Sequence[str]) -> None:
        self._engine.abort(ids)


class FewTokens(CheckedOnly):
    """Lets an engine compute a few tokens of each request."""

    def submit(self, request: Request, on_output: OnOutput) -> object:
        few = replace(request.settings, max_new_tokens=min(request.settings.max_new_tokens or TOKENS, TOKENS))
        return self._engine.submit(replace(request, settings=few), on_output)


class Logged(logging.Handler):
    """Keeps what is logged as an error: what a client is not told is a finding as well."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else ""
        self.lines.append(f"{record.name}: {record.getMessage()} {cause!r}")


class Bodies:
    """The hunt."""

    slow = 1.0

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = ExitStack()
        self._log = Logged()
        logging.getLogger().addHandler(self._log)
        folder = demo_pair_path()

        def load() -> ovspec.LLMPipeline:
            draft = ovspec.draft_model(folder / "draft")
            options = {
                "INFERENCE_PRECISION_HINT": "f32",
                "KV_CACHE_PRECISION": "f32",
                "INFERENCE_NUM_THREADS": 1,
            }
            return ovspec.LLMPipeline(folder, "CPU", draft_model=draft, verify="commit", **options)

        backend = self._stack.enter_context(in_this_process(load, max_num_seqs=16))
        model = ServedModel(backend.requests, folder, "demo", TEMPLATE)
        engine = typing.cast(EngineThread, backend.answers)
        # Caches are full before memory is measured, and so are the buffers that `_largest` fills.
        engine.engine.target.limit_cache(None, _PREFIX_CACHE_BYTES)
        fill_caches(engine.engine, _CACHED_TOKENS)

        def app_of(answers: Answers) -> Any:
            return Server(model, Backend(backend.requests, answers, backend.gauges), ServerLimits()).app()

        self._computes, self._checks = app_of(FewTokens(engine)), app_of(CheckedOnly(engine))
        self._innocent = app_of(engine)
        self._tried = 0
        self._loop.run_until_complete(self._largest())
        self._alone = self._innocent_answer(self._loop.run_until_complete(self._ask_innocent()))

    def make(self, chance: random.Random) -> Given:
        """A body with its path, and whether it is computed."""
        path = chance.choice((*PATHS, *_GENERATING, *_GENERATING, *_GENERATING))
        value: Any = body_of(path, chance)
        while is_larger(value, _MOST_BYTES):
            value = body_of(path, chance)
        data = dumps(value, chance)
        for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 1, 3))):
            value = change(value, chance)
            if is_larger(value, _MOST_BYTES):
                break
            changed = dumps(value, chance)
            data = changed if len(changed) <= _MOST_BYTES else data
        for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 3))):
            data = change_bytes(data, chance)
        computed = chance.randrange(COMPUTED) == 0 and len(data) < 4096
        return {"path": path, "body": base64.b64encode(data).decode(), "computed": computed}

    def attempt(self, given: Given) -> str:
        """Ask, and look at the answer."""
        data = base64.b64decode(given["body"])
        self._tried += 1
        return self._loop.run_until_complete(self._ask_all(given["path"], data, given["computed"]))

    def smaller(self, given: Given) -> Iterator[Given]:
        """Without a field, or a part of the bytes."""
        data = base64.b64decode(given["body"])
        try:
            candidates = [json.dumps(value).encode() for value in smaller_values(json.loads(data))]
        except (ValueError, RecursionError):
            candidates = smaller_bytes(data)
        for small in candidates:
            if len(small) < len(data):
                yield {**given, "body": base64.b64encode(small).decode()}

    async def _largest(self) -> None:
        """The largest texts, of short and long words, to every request of the tokenizers.

        Each keeps buffers of the largest text that it has had; they take turns.
        """
        for text in ("a " * (_MOST_BYTES // 4), "a" * (_MOST_BYTES // 2), "<|endoftext|>" * 9000):
            for _ in range(_TURNS):
                for path, body in (
                    ("/tokenize", {"prompt": text}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                    ("/detokenize", {"tokens": [5] * (_MOST_BYTES // 4)}),
                ):
                    check_answer(path, *await ask(self._checks, path, json.dumps(body).encode()))

    async def _ask_all(self, path: str, data: bytes, computed: bool) -> str:
        if not computed:
            status = check_answer(path, *await ask(self._checks, path, data))
            if self._tried % ALONE == 0:
                # Places that requests have leaked end in refusals.
                self._innocent_answer(
                    await ask(self._checks, "/v1/completions", json.dumps(INNOCENT).encode())
                )
        else:
            innocent, answer = await asyncio.gather(self._ask_innocent(), ask(self._computes, path, data))
            status = check_answer(path, *answer)
            self._check_innocent(innocent)
        if self._log.lines:
            line, self._log.lines = self._log.lines[0], []
            raise Finding(f"logged an error: {line}")
        return f"{status}{' computed' if computed else ''}"

    async def _ask_innocent(self) -> tuple[int, bytes]:
        return await ask(self._innocent, "/v1/completions", json.dumps(INNOCENT).encode())

    def _innocent_answer(self, answer: tuple[int, bytes]) -> str:
        status, data = answer
        if status != 200:
            raise Finding(f"another client's request was answered {status}: {data[:200]!r}")
        return str(json.loads(data)["choices"][0]["text"])

    def _check_innocent(self, answer: tuple[int, bytes]) -> None:
        if (text := self._innocent_answer(answer)) != self._alone:
            raise Finding(f"another client's answer changed: {text!r} instead of {self._alone!r}")


async def ask(app: Any, path: str, data: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to a POST."""
    sent: list[MutableMapping[str, Any]] = []
    gone = asyncio.Event()
    parts = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "root_path": "",
        "raw_path": path.encode(), "query_string": b"", "client": ("127.0.0.1", 1), "server": ("127.0.0.1",
        80),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    try:
        await app(scope, receive, send)
    finally:
        gone.set()
    if not sent or sent[-1].get("more_body"):
        raise Finding("the answer has no end")
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def check_answer(path: str, status: int, data: bytes) -> int:
    """Refuse an answer that no client can read, or that says that the server failed."""
    shown = data[:200].decode("utf-8", "replace")
    if status >= 500:
        raise Finding(f"status {status}: {shown}")
    parts = [data]
    if data.startswith(b"data: "):
        *events, done, rest = data.split(b"\n\n")
        if done != b"data: [DONE]" or rest:
            raise Finding(f"a stream without its end: {shown}")
        parts = [event.removeprefix(b"data: ") for event in events]
    elif data.startswith(b"event: "):
        *events, rest = data.split(b"\n\n")
        parts = [event.partition(b"\ndata: ")[2] for event in events]
        if rest or not json.loads(parts[-1])["type"].endswith(("completed", "incomplete")):
            raise Finding(f"a stream without its end: {shown}")
    for part in parts:
        value = json.loads(part, parse_constant=_no_constant)
        if value.get("error"):
            _check_error(value["error"], 400 if len(parts) > 1 else status)
    return status


def _no_constant(name: str) -> None:
    raise Finding(f"an answer holds {name}, which is no JSON")


def _check_error(error: Given, status: int) -> None:
    message = error["message"]
    if error["type"] == "server_error":
        raise Finding(f"a server error in a stream: {message[:300]}")
    if not message or "\n" in message or len(message) > 2000:
        raise Finding(f"an error with line breaks, too long or without a text: {message[:200]!r}")
    if status == 200:
        raise Finding(f"status 200 with an error: {message[:200]}")
