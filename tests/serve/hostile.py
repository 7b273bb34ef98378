"""What hostile clients cost the others: `python tests/serve/hostile.py`.

58 of 64 clients ask an `ovspec serve` of the demo pair for texts, each for the next as soon as it has one.
The others are hostile, in one way after the other, in every second round. `ratio` is the 99th percentile of
the honest clients' latency with hostile ones against that without, each the median of its rounds: one stop
of a shared machine is the 99th percentile of a whole round. What the engine does for hostile clients that it
answers is not counted out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from prompts import STORY
from serve.conftest import serving

from ovspec_models import demo_pair_path

HONEST, HOSTILE = 58, 6
Ask = Callable[[int], Awaitable[str]]


def post(body: object, path: str = "/v1/completions") -> bytes:
    """A request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


_ONCE: dict[str, Any] = {"prompt": "Once", "max_tokens": 8}
BODIES = {
    "stop ids": post({**_ONCE, "ignore_eos": True, "stop_token_ids": [4096]}),
    "many stop ids": post({**_ONCE, "stop_token_ids": [5] * 10**6}),
    "many answers": post({"prompt": ["a"] * 8000, "n": 16}),
    "long stops": post({**_ONCE, "stop": ["a" * 400_000] * 16}),
    "deep JSON": post(b'{"prompt":' + b"[" * 10**6 + b"]" * 10**6 + b"}"),
    "long list": post(b'{"prompt":[' + b"1," * 4_000_000 + b"1]}"),
    "many messages": post({"messages": [{"role": "user", "content": ""}] * 200_000}, "/v1/chat/completions"),
    "tokenize": post({"prompt": "Lily " * 20_000}, "/tokenize"),
    "long tokenize": post({"prompt": "Lily " * 1_600_000}, "/tokenize"),
    "detokenize": post({"tokens": [5] * 20_000}, "/detokenize"),
    "no request": b"GET / HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n",
}
WAYS = [*BODIES, "slow bodies", "disconnects"]


async def exchange(port: int, data: bytes) -> str:
    """The status of an answer, which is read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(ConnectionError):  # refused before all of it was sent
            writer.write(data)
            await writer.drain()
        answer = await reader.read()
        return answer.split(b" ", 2)[1].decode() if answer else "cut"
    finally:
        writer.close()


async def send_slowly(port: int) -> str:
    """A body that comes byte by byte."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    for byte in post(_ONCE):
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)
    writer.close()
    return "slow"


async def leave(port: int) -> str:
    """A stream whose client goes at its first chunk."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post({**_ONCE, "max_tokens": 2000, "ignore_eos": True, "stream": True}))
    await reader.read(100)
    writer.close()
    return "left"


async def hostile(port: int, way: str) -> None:
    """Hostile clients until this process is ended."""
    asks: dict[str, Ask] = {"slow bodies": send_slowly, "disconnects": leave}

    async def client() -> None:
        while True:
            with suppress(ConnectionError):
                await (asks[way](port) if way in asks else exchange(port, BODIES[way]))

    await asyncio.gather(*(client() for _ in range(HOSTILE)))


async def honest(port: int, seconds: float) -> tuple[list[float], Counter[str]]:
    """Latencies of honest clients in so many seconds, and what they were answered."""
    ends, latencies, statuses = time.monotonic() + seconds, list[float](), Counter[str]()

    async def client(number: int) -> None:
        body = {"prompt": STORY[: 100 + 11 * number], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        while (began := time.monotonic()) < ends:
            statuses[await exchange(port, post(body))] += 1
            latencies.append(time.monotonic() - began)

    await asyncio.gather(*(client(number) for number in range(HONEST)))
    return latencies, statuses


def p99(port: int, seconds: float, way: str | None) -> tuple[float, Counter[str]]:
    """The honest clients' 99th percentile in seconds, with hostile ones in a process of their own."""
    command = [sys.executable, __file__, "--port", str(port), "--hostile", str(way)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE) if way else None
    try:
        if process and process.stdout:
            process.stdout.readline()  # it has its bodies
            time.sleep(1)
        latencies, statuses = asyncio.run(honest(port, seconds))
    finally:
        if process:
            process.kill()
            process.wait()
    return float(np.percentile(latencies, 99)), statuses


def measure(seconds: float, rounds: int, ways: list[str]) -> dict[str, Any]:
    """The ratio of every way."""
    with serving(demo_pair_path(), "--client-timeout", "5", "--log-level", "warning") as served:
        port = int(served.url.rpartition(":")[2])
        p99(port, seconds, None)
        report = {}
        for way in ways:
            during, without, answers = list[float](), list[float](), Counter[str]()
            for _ in range(rounds):
                without.append(p99(port, seconds, None)[0])
                latency, statuses = p99(port, seconds, way)
                during.append(latency)
                answers += statuses
            report[way] = {
                "p99": [round(one, 3) for one in during],
                "without": [round(one, 3) for one in without],
                "ratio": round(float(np.median(during) / np.median(without)), 2),
                "answers": dict(answers),
            }
            print(way, report[way], file=sys.stderr, flush=True)
        return report


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="of each way, and as many without between them")
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hostile", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hostile:
        print("ready", flush=True)
        asyncio.run(hostile(given.port, given.hostile))
    print(json.dumps(measure(given.seconds, given.rounds, given.ways), indent=1))


if __name__ == "__main__":
    main()
