"""What the server takes for a token beside the engine: `python tests/serve/overhead.py --streams 16`.

An engine alone and an `ovspec serve` of the same model answer the same requests in turn. The processor time
of the server's event loop for a streamed token is divided by the time that the engine alone takes for a
token. Random weights of a real shape with the demo's vocabulary, so that tokens have text; a larger
vocabulary makes passes longer, and the share smaller. Only the time in which all streams decode counts; both
find the prompts in their caches, after a first round that does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from serve.conftest import serving

import ovspec
from ovspec.bench.footprint import folder_of
from ovspec.bench.source import ModelSource
from ovspec.engine.requests.request import Request, RequestOutput

VOCABULARY = 4096
PROPERTIES = {"KV_CACHE_PRECISION": "u8"}


@dataclass
class Round:
    """The time in which all streams decode, and the tokens of it."""

    streams: int
    clock: Callable[[], float]
    seconds: float = 0.0
    processor: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        self._seen: Counter[int] = Counter()
        self._is_open = self._has_ended = False

    def got(self, stream: int, tokens: int, ended: bool) -> None:
        """Tokens of a stream came."""
        if self._is_open:
            self.tokens += tokens
        self._seen[stream] += tokens
        if tokens and self._seen[stream] == tokens and len(+self._seen) == self.streams:
            self._is_open = not self._has_ended
            self._began, self._processor = time.perf_counter(), self.clock()
        self._has_ended |= ended
        if ended and self._is_open:
            self._is_open = False
            self.seconds = time.perf_counter() - self._began
            self.processor = self.clock() - self._processor

    @property
    def seconds_per_token(self) -> float:
        if not self.tokens:
            raise SystemExit("a stream ended before the last one began; raise --tokens")
        return self.seconds / self.tokens


def of_engine(pipeline: ovspec.LLMPipeline, prompts: list[list[int]], tokens: int) -> Round:
    """The requests, given to the engine itself."""
    measured, settings = (
        Round(len(prompts), time.process_time),
        pipeline.settings(max_new_tokens=tokens, ignore_eos=True, num_assistant_tokens=0),
    )
    left = threading.Semaphore(0)

    def taker(number: int) -> Callable[[RequestOutput], None]:
        def take(output: RequestOutput) -> None:
            measured.got(number, len(output.token_ids), output.finished)
            if output.finished:
                left.release()

        return take

    for number, prompt in enumerate(prompts):
        pipeline.engine.submit(Request(f"{number}", prompt, settings), taker(number))
    for _ in prompts:
        left.acquire()
    return measured


def of_server(url: str, process: int, prompts: list[list[int]], tokens: int) -> Round:
    """The requests, streamed by the server; a chunk counts as a token."""
    host, port = url.removeprefix("http://").split(":")
    measured = Round(len(prompts), lambda: _processor_seconds(process))
    with selectors.DefaultSelector() as selector:
        for number, prompt in enumerate(prompts):
            link = socket.create_connection((host, int(port)))
            link.sendall(
                _post(
                    {
                        "prompt": prompt,
                        "max_tokens": tokens,
                        "ignore_eos": True,
                        "temperature": 0,
                        "num_assistant_tokens": 0,
                        "stream": True,
                    }
                )
            )
            selector.register(link, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(2**16)
                if not data or b"[DONE]" in data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                measured.got(key.data, data.count(b'"text"'), not data or b"[DONE]" in data)
    return measured


def _processor_seconds(process: int) -> float:
    """Processor time of the first thread of a process, which runs the server's event loop."""
    text = Path(f"/proc/{process}/task/{process}/schedstat").read_text(encoding="ascii")
    return int(text.split()[0]) / 1e9


def _post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    random = np.random.default_rng(1)
    prompts = random.integers(10, VOCABULARY, (given.streams, given.context)).tolist()
    source = ModelSource.from_shape(given.shape, given.layers, VOCABULARY, "int8")
    alone, served_rounds = [], []
    with folder_of(source) as folder:
        pipeline = ovspec.LLMPipeline(folder, "CPU", **PROPERTIES)
        options = [word for item in PROPERTIES.items() for word in ("--property", "=".join(item))]
        options += ["--property", "INFERENCE_PRECISION_HINT=bf16", "--max-num-seqs", str(given.streams)]
        with serving(folder, *options) as served:
            for _ in range(given.rounds + 1):
                alone.append(of_engine(pipeline, prompts, given.tokens))
                served_rounds.append(of_server(served.url, served.process.pid, prompts, given.tokens))
                print(alone[-1], served_rounds[-1], file=sys.stderr, flush=True)
    alone, served_rounds = alone[1:], served_rounds[1:]
    engine = median(one.seconds_per_token for one in alone)
    server = median(one.processor / one.tokens for one in served_rounds)
    report = {
        "cores": os.cpu_count(),
        "engine_ms_per_token": 1e3 * engine,
        "server_ms_per_token": 1e3 * server,
        "share": server / engine,
        "time_served_to_alone": median(
            two.seconds_per_token / one.seconds_per_token
            for one, two in zip(alone, served_rounds, strict=True)
        ),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
