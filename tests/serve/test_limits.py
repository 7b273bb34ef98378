"""Limits, keys, clients that vanish or do not read, and the end of a server."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from commands import one_line, ovspec
from serve.conftest import Served, serving

from ovspec_models import ModelInfo

PROMPT = "Once upon a time, there was a little girl named Lily. She"
LONG: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "temperature": 0, "max_tokens": 6000}
HTTP = "HTTP/1.1\r\nHost: localhost\r\n"
ENDLESS = {**LONG, "ignore_eos": True}


@pytest.fixture(scope="module")
def small(demo_ir: Path) -> Iterator[Served]:
    """A server with small limits and two keys, which does not draft."""
    limits = (
        "--max-num-seqs",
        "2",
        "--max-queued",
        "1",
        "--max-body-bytes",
        "20000",
        "--client-timeout",
        "2",
    )
    keys = ("--api-key", "first", "--api-key", "second")
    arguments = (*limits, *keys, "--served-model-name", "demo", "--drafter", "none")
    with serving(demo_ir, *arguments, "--cors-origin", "https://example.org") as served:
        yield served


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def running(served: Served) -> float:
    request = f"GET /metrics {HTTP}Authorization: Bearer first\r\nConnection: close\r\n\r\n"
    text = exchange(served, request.encode()).decode()
    found = re.findall(r"^vllm:num_requests_(?:running|waiting){.*} (\S+)$", text, re.MULTILINE)
    assert len(found) == 2
    return sum(map(float, found))


def address(served: Served) -> tuple[str, int]:
    host, port = served.url.removeprefix("http://").split(":")
    return host, int(port)


def connected(served: Served) -> socket.socket:
    return socket.create_connection(address(served), timeout=60)


def exchange(served: Served, data: bytes) -> bytes:
    with connected(served) as link:
        link.sendall(data)
        return b"".join(iter(lambda: link.recv(65536), b""))


def request(body: object, path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} {HTTP}Authorization: Bearer first\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def test_keys(small: Served) -> None:
    body = {"model": "demo", "prompt": "Once", "max_tokens": 1}
    for name in ("first", "second"):
        assert small.post("/v1/completions", body, **key(name))[0] == 200
    for wrong in ({}, key("third"), key("firs"), key("first2"), key(""), {"Authorization": "first"}):
        status, answer = small.post("/v1/completions", body, **wrong)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    with pytest.raises(openai.AuthenticationError):
        small.client(api_key="third").models.list()
    assert small.client(api_key="second").models.list().data
    assert json.loads(small.get("/health")) == {"status": "ok"}
    assert small.get("/").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "header", ["Host: [", "Authorization: \xff", "Authorization: Bearer", "Content-Type: \xff;;"]
)
def test_odd_headers_are_no_fault_of_the_server(small: Served, header: str) -> None:
    head = f"POST /nowhere HTTP/1.1\r\n{header}\r\nConnection: close\r\n"
    head += "" if header.startswith("Host") else "Host: localhost\r\n"
    head += "" if header.startswith("Auth") else "Authorization: Bearer first\r\n"
    status = exchange(small, f"{head}Content-Length: 0\r\n\r\n".encode("latin-1")).split(b" ", 2)[1]
    assert status == (b"401" if header.startswith("Auth") else b"404")


def test_two_lengths_of_a_body_are_refused(small: Served) -> None:
    """Two servers that go by different ones would see different requests."""
    head, body = request({"prompt": "Once", "max_tokens": 1}).split(b"\r\n\r\n")
    chunks = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    sent = head + b"\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    answer = exchange(small, sent)
    assert answer.startswith(b"HTTP/1.1 400") and b"contradict" in answer


def test_every_request_has_a_line_in_the_log(small: Served) -> None:
    """With tokens and id, without what was asked; and a broken line in a path stays one line."""
    status, answer = small.post("/v1/completions", {"prompt": "Secret", "max_tokens": 3}, **key("first"))
    assert status == 200
    exchange(small, f"GET /a%0aINFO {HTTP}Connection: close\r\n\r\n".encode())
    small.wait_for(lambda: any("/a%0aINFO 401, " in line for line in small.lines))
    used = answer["usage"]
    found = [line for line in small.lines if answer["id"] in line]
    counts = f"{used['prompt_tokens']} tokens in, {used['completion_tokens']} out, "
    assert len(found) == 1 and f" INFO POST /v1/completions 200, {counts}" in found[0]
    assert not any("Secret" in line or line.startswith("INFO") for line in small.lines)


def test_cors_for_the_origin_that_was_named_only(small: Served) -> None:
    def answer(origin: str) -> bytes:
        head = f"OPTIONS /v1/completions {HTTP}Origin: {origin}\r\nConnection: close\r\n"
        asked = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n"
        return exchange(small, (head + asked).encode()).lower()

    assert b"access-control-allow-origin: https://example.org" in answer("https://example.org")
    assert b"access-control-allow-origin" not in answer("https://example.com")


def test_no_cors_unless_asked_for(served: Served) -> None:
    head = f"GET /v1/models {HTTP}Origin: https://example.org\r\nConnection: close\r\n\r\n"
    assert b"access-control" not in exchange(served, head.encode()).lower()


def test_long_bodies_are_refused(small: Served) -> None:
    status, answer = small.post("/v1/completions", {**LONG, "prompt": "x" * 30000}, **key("first"))
    assert status == 413 and answer["error"]["code"] == "body_too_large"
    # A body without a length, whose end never comes, is cut off.
    head = request({}).split(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    with connected(small) as link:
        link.sendall(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                link.sendall(b"4e20\r\n" + b"x" * 20000 + b"\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 413")


@pytest.mark.slow
def test_slow_bodies_are_not_waited_for(small: Served) -> None:
    whole = request(LONG)
    with connected(small) as link:
        link.sendall(whole[:-10])
        assert link.recv(65536).startswith(b"HTTP/1.1 408")


def test_too_many_requests_are_sent_away(small: Served) -> None:
    links = [connected(small) for _ in range(3)]
    try:
        for link in links:
            link.sendall(request({**ENDLESS, "stream": True}))
        small.wait_for(lambda: running(small) == 3)
        client = small.client(api_key="first")
        with pytest.raises(openai.RateLimitError) as many:
            client.completions.create(model="demo", prompt="Once", max_tokens=1)
        assert int(many.value.response.headers["retry-after"]) >= 1
    finally:
        for link in links:
            link.close()
    small.wait_for(lambda: running(small) == 0)
    # The official client tries again when it is told to.
    assert small.client(api_key="first").completions.create(model="demo", prompt="Once", max_tokens=1).choices
    with pytest.raises(openai.BadRequestError, match="at most 3"):
        client.completions.create(model="demo", prompt="Once", max_tokens=1, n=4)


def test_what_is_refused_waits_while_others_are_answered(small: Served) -> None:
    """A client that asks again at once would take the time of their answers."""

    def seconds(path: str, body: object) -> float:
        began = time.monotonic()
        small.post(path, body, **key("first"))
        return time.monotonic() - began

    asked: list[tuple[str, object]] = [("/v1/completions", {}), ("/tokenize", {"prompt": "a"})]
    assert min(seconds(*one) for one in asked * 3) < 0.1
    with connected(small) as link:
        link.sendall(request({**ENDLESS, "stream": True}))
        small.wait_for(lambda: running(small) == 1)
        assert min(seconds(*one) for one in asked) >= 0.1
    small.wait_for(lambda: running(small) == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_request_of_a_vanished_client_ends(small: Served, stream: bool) -> None:
    link = connected(small)
    link.sendall(request({**ENDLESS, "stream": stream}))
    small.wait_for(lambda: running(small) == 1)
    link.close()
    small.wait_for(lambda: running(small) == 0)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off(small: Served) -> None:
    # Log probabilities make events long, so that buffers of the system fill within one answer.
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(address(small))
        link.sendall(request({**ENDLESS, "stream": True, "logprobs": 20}))
        small.wait_for(lambda: running(small) == 1)
        small.wait_for(lambda: running(small) == 0, seconds=120)
        # Others are answered meanwhile.
        assert small.client(api_key="first").completions.create(model="demo", prompt="Once", max_tokens=1)
    assert small.process.poll() is None


def test_an_answer_that_takes_too_long_ends_with_an_error(demo_ir: Path) -> None:
    with serving(demo_ir, "--request-timeout", "0.5", "--served-model-name", "demo") as served:
        client = served.client()
        with pytest.raises(openai.InternalServerError, match=r"longer than 0\.5 s"):
            client.completions.create(**{**LONG, "extra_body": {"ignore_eos": True}})
        served.wait_for(lambda: served.metric("vllm:num_requests_running") == 0)


def test_the_end_finishes_what_runs(demo_ir: Path) -> None:
    with serving(demo_ir, "--served-model-name", "demo") as served:
        client, texts = served.client(), []
        options: dict[str, Any] = {**LONG, "max_tokens": 150, "extra_body": {"ignore_eos": True}}
        expected = client.completions.create(**options).choices[0].text

        def ask() -> None:
            chunks = client.completions.create(**options, stream=True)
            texts.append("".join(chunk.choices[0].text for chunk in chunks))

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        served.wait_for(lambda: served.metric("vllm:num_requests_running") == 3)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(openai.APIConnectionError):
            served.client().models.list()
        for thread in asking:
            thread.join()
        assert texts == [expected] * 3
        assert served.process.wait(30) == 0


@pytest.mark.slow
def test_a_second_signal_ends_at_once(demo_ir: Path) -> None:
    with serving(demo_ir, "--served-model-name", "demo") as served, connected(served) as link:
        link.sendall(request({**ENDLESS, "stream": True}))
        served.wait_for(lambda: served.metric("vllm:num_requests_running") == 1)
        served.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert served.process.poll() is None
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(20) == 0


@pytest.mark.slow
def test_requests_beyond_the_cache_wait_or_are_read_again(demo_ir: Path, served: Served) -> None:
    """Six answers of 300 tokens in room for 1,024: each is the answer that it gets alone."""
    bodies = [{**LONG, "prompt": f"{PROMPT} {number}", "max_tokens": 300} for number in range(6)]
    bodies = [{**body, "ignore_eos": True, "verify": "dense"} for body in bodies]
    block = 32 * ModelInfo.read(demo_ir).kv_cache_bytes_per_token("f32", "BY_TOKEN")
    size = ("--cache-size", str(32 * block), "--max-num-seqs", "6", "--served-model-name", "demo")
    with serving(demo_ir, *size) as bounded, ThreadPoolExecutor(6) as pool:
        assert any("1,024 tokens" in line for line in bounded.lines)
        found = [answer for _, answer in pool.map(lambda body: bounded.post("/v1/completions", body), bodies)]
        assert bounded.metric("vllm:kv_cache_usage_perc") <= 1
        status, refused = bounded.post("/v1/completions", {**LONG, "max_tokens": 1020})
        assert status == 400 and "1024 tokens for both" in refused["error"]["message"]
    for body, answer in zip(bodies, found, strict=True):
        alone = served.post("/v1/completions", body)[1]
        assert answer["choices"][0]["text"] == alone["choices"][0]["text"]


def test_a_port_in_use_is_one_line(demo_ir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = one_line(ovspec("serve", "-m", demo_ir, "--port", str(port)))
        assert f"--port {port} is in use on 127.0.0.1" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "no.such.host.invalid"), "no such host"),
        (("--host", "192.0.2.1"), "no address of this machine"),
        (("--api-key", " "), "--api-key"),
        (("--chat-template", "/nowhere"), "--chat-template /nowhere"),
        (("--port", "0", "-m", "/nowhere"), "'/nowhere' does not exist"),
        (("--port", "70000"), "70000"),
        (("--request-timeout", "inf"), "--request-timeout"),
        (("--client-timeout", "nan"), "--client-timeout"),
        (("--max-num-seqs", "0"), "--max-num-seqs"),
        (("--max-num-seqs", str(10**30)), "--max-num-seqs"),
        (("--max-queued", str(10**30)), "--max-queued"),
        (("--max-context", "0"), "--max-context"),
        (("--cache-size", "0"), "--cache-size"),
        (("--cache-size", "9" * 400), "--cache-size"),
        (("--memory-limit", "9" * 400), "--memory-limit"),
    ],
)
def test_bad_options_are_one_line(demo_ir: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in one_line(ovspec("serve", "-m", demo_ir, *arguments))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHos"], ids=["nothing", "half a header"])
def test_a_connection_without_a_request_is_ended(small: Served, sent: bytes) -> None:
    """After one to two times `--client-timeout`, which is 2 seconds here."""
    assert exchange(small, sent) == b""


@pytest.mark.parametrize("secret", ["", " ", " key"])
def test_a_key_that_would_open_the_server_is_refused(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("OVSPEC_API_KEY", secret)
    assert "--api-key" in one_line(ovspec("serve", "-m", demo_ir, "--port", "0"))
