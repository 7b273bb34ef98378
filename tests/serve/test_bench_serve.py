"""`ovspec bench serve` against a real server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from commands import one_line, ovspec
from serve.conftest import Served

from ovspec.bench.serve_client import ServeClient, Timing
from ovspec.bench.serve_report import ServeReport, Spread


def test_figures_of_a_run(served: Served, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "Once upon a time, there was a little girl"}, {"prompt": "Tom had a ball. One day"}]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ("--num-prompts", "6", "--concurrency", "3", "--max-tokens", "24", "--json", "-")
    extra = ("--extra", "num_assistant_tokens=4", "--extra", "ignore_eos=true")
    run = ovspec("bench", "serve", "--base-url", served.url, "--prompts", prompts, *options, *extra)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["model"] == "demo" and report["num_answered"] == 6 and report["errors"] == {}
    assert report["num_output_tokens"] == 6 * 24 and report["attention_density"] == 1.0
    assert report["tokens_per_chunk"] > 1.0 and report["speculative_decoding"]["num_spec_steps"] > 0
    for name in ("ttft", "tpot", "itl_per_token", "itl_per_chunk", "e2el"):
        spread = report[f"{name}_ms"]
        assert spread["mean"] > 0 and spread["p50"] <= spread["p90"] <= spread["p99"]
    assert report["itl_per_chunk_ms"]["mean"] > report["itl_per_token_ms"]["mean"]
    assert report["ttft_ms"]["p99"] <= report["e2el_ms"]["p99"]


def test_chat_and_the_table(served: Served) -> None:
    options = ("--num-prompts", "3", "--concurrency", "2", "--max-tokens", "8", "--prompt-words", "12")
    run = ovspec(
        "bench", "serve", "--base-url", f"{served.url}/v1", "--chat", "--request-rate", "20", *options
    )
    assert run.returncode == 0, run.stderr
    assert "demo: 3 of 3 requests answered" in run.stdout and "itl per chunk" in run.stdout


def test_gaps_are_shared_among_the_tokens_of_a_chunk() -> None:
    timing = Timing(0.0, [1.0, 2.0, 5.0], [4, 4, 12], 5.5, "x" * 20, 3, 5)
    assert (timing.ttft, timing.e2el, timing.tpot) == (1.0, 5.5, 1.0)
    assert timing.chunk_gaps == [1.0, 3.0] and timing.token_gaps == [1.0, 1.0, 1.0, 1.0]
    other = Timing(0.0, error="429 busy")
    report = ServeReport("m", 2, None, [timing, other, other], 5.5)
    assert report.errors == {"429 busy": 2} and report.as_json()["num_answered"] == 1
    assert Spread.of([0.001, 0.003]).mean == 2.0


class _Odd(BaseHTTPRequestHandler):
    """A server that streams some events, and whose connection then breaks or ends."""

    protocol_version = "HTTP/1.1"
    events: ClassVar[list[str]] = []
    breaks = False

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.events:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"" if self.breaks else b"0\r\n\r\n")
        self.close_connection = True


_TEXT, _DONE = '{"choices": [{"text": "abc"}]}', "[DONE]"
_NULLS = '{"metrics": {"speculative_decoding": null, "attention_density": null}}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "breaks", "error", "tokens"),
    [
        ([_TEXT], True, "the stream broke off before [DONE]", 0),
        ([_TEXT], False, "the stream broke off before [DONE]", 0),
        ([_DONE], False, "the stream had no text", 0),
        ([_TEXT, "[1]", _DONE], False, "an event is no object: [1]", 0),
        ([_TEXT, '{"choices": [{"text": "", "finish_reason": "stop"}]}'], False, "", 0),
        ([_TEXT, _DONE], False, "", 0),
        ([_TEXT, '{"usage": {"completion_tokens": null}}', _DONE], False, "", 0),
        ([_TEXT, '{"usage": {"completion_tokens": 3}, "metrics": null}', _DONE], False, "", 3),
        ([_TEXT, _NULLS, _DONE], False, "", 0),
    ],
)
def test_odd_streams(events: list[str], breaks: bool, error: str, tokens: int) -> None:
    """Half an answer is none; what a server does not count is missing, and not 0."""
    handler = type("Handler", (_Odd,), {"events": events, "breaks": breaks})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = ServeClient(f"http://127.0.0.1:{server.server_port}")
        timing = client.measure("/v1/completions", {"prompt": "a"})
        server.shutdown()
    assert (timing.error, timing.num_tokens) == (error, tokens)
    report = ServeReport("m", 1, None, [timing], 1.0)
    body = report.as_json()
    assert body["num_answered"] == (not error) and body["output_throughput"] == (tokens or None)
    assert body["speculative_decoding"] is None and body["attention_density"] is None
    assert ("does not say how many tokens" in "".join(report.lines())) == (not tokens)
    assert not timing.token_gaps and report.table().row_count == 5


def test_refusals_are_one_line(served: Served, tmp_path: Path) -> None:
    def refused(*arguments: str | Path) -> str:
        return one_line(ovspec("bench", "serve", *arguments))

    assert "no server answers" in refused("--base-url", "http://127.0.0.1:1")
    assert "expected an address" in refused("--base-url", "127.0.0.1:8000")
    assert "temperature=9" in refused("--base-url", served.url, "--extra", "temperature=9")
    assert "expected FIELD=JSON" in refused("--base-url", served.url, "--extra", "temperature")
    for field in ("stream=false", "max_tokens=5", 'prompt="x"', 'model="x"'):
        assert "the command sets" in refused("--base-url", served.url, "--extra", field)
    twice = ("--extra", "top_k=1", "--extra", "top_k=2")
    assert "--extra top_k is given twice" in refused("--base-url", served.url, *twice)
    assert "/nowhere" in refused("--base-url", served.url, "--prompts", "/nowhere")


def test_errors_of_a_server_are_counted(served: Served) -> None:
    client = ServeClient(served.url)
    assert client.model() == "demo"
    timing = client.measure("/v1/completions", {"model": "demo", "prompt": []})
    assert timing.error.startswith("400 prompt") and timing.ended > timing.started
    with pytest.raises(ValueError, match="expected an address"):
        ServeClient("ftp://example.org")
