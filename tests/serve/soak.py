"""Many clients for long, some of them bad: `python tests/serve/soak.py --seconds 600`.

64 clients ask an `ovspec serve` of the demo pair for texts, greedily and sampled with seeds, in streams and
whole. A tenth vanish in the middle of a stream, a tenth read slowly, a tenth send too much. Every whole
answer is compared with that of the same request alone, which is asked before the load begins. `growth_mb` is
the server's memory in the last quarter against the first one, without the first minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from prompts import STORY
from serve.conftest import TEMPLATE, Served, serving

from ovspec_models import demo_pair_path

_REQUESTS = 24
_MAX_BODY = 100_000
_MAX_NUM_SEQS = 16


def request_bodies() -> list[dict[str, Any]]:
    """Different requests; each has one right answer."""
    bodies = []
    for number in range(_REQUESTS):
        prompt = STORY[: 60 + 37 * number % 900]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 8 + 5 * number % 40, "seed": number}
        body["temperature"] = 0 if number % 3 else 0.9
        body["verify"] = "commit" if number % 2 else "dense"
        if number % 5 == 0:
            body["stop"] = [" and"]
        bodies.append(body)
    return bodies


def endless(body: dict[str, Any]) -> dict[str, Any]:
    """The request with a long answer."""
    return {**body, "stream": True, "max_tokens": 400, "ignore_eos": True, "stop": None}


@dataclass
class Soak:
    """What the clients saw."""

    served: Served
    bodies: list[dict[str, Any]]
    expected: list[str]
    ends: float
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def client(self, number: int) -> None:
        """One client until the end; what it is follows from its number."""
        chance = random.Random(number)
        kind = {0: self.vanish, 1: self.read_slowly, 2: self.send_too_much}.get(number % 10, self.ask)
        while time.monotonic() < self.ends:
            try:
                kind(chance)
            except OSError as error:
                self.counts[f"{kind.__name__}: {type(error).__name__}"] += 1
                time.sleep(0.1)

    def ask(self, chance: random.Random, pause: float = 0.0) -> None:
        """Compare an answer."""
        number = chance.randrange(len(self.bodies))
        streams = pause > 0 or chance.random() < 0.5
        status, text = self.answer({**self.bodies[number], "stream": streams}, pause)
        name = "slow" if pause else "asked"
        if status == 200:
            self.counts[f"{name}: answered"] += 1
            if text != self.expected[number]:
                self.wrong.append(f"{number}: {text!r} instead of {self.expected[number]!r}")
        else:
            self.counts[f"{name}: {status}"] += 1
            if status not in (429,):
                self.wrong.append(f"{number}: status {status}: {text}")
            time.sleep(0.2)

    def read_slowly(self, chance: random.Random) -> None:
        """Read a few bytes at a time."""
        self.ask(chance, pause=0.02)

    def vanish(self, chance: random.Random) -> None:
        """Go away while the answer comes."""
        with self.connection() as link:
            link.sendall(_post(endless(chance.choice(self.bodies))))
            link.recv(chance.choice((1, 500, 2000)))
        self.counts["vanished"] += 1

    def send_too_much(self, chance: random.Random) -> None:
        """Send a body, a prompt or a number that is too large."""
        body = dict(chance.choice(self.bodies))
        body |= chance.choice(({"prompt": "x" * 200_000}, {"prompt": "Lily " * 9000}, {"max_tokens": 10**6}))
        status, _ = self.answer(body)
        self.counts[f"too much: {status}"] += 1
        if status not in (400, 413, 429):
            self.wrong.append(f"too much was answered with {status}")

    def answer(self, body: dict[str, Any], pause: float = 0.0) -> tuple[int, str]:
        """Status and text of an answer."""
        with self.connection() as link:
            # What is refused before all of it was sent has its answer waiting.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link.sendall(_post(body))
            data = bytearray()
            while part := link.recv(300 if pause else 65536):
                data += part
                time.sleep(pause)
        head, _, rest = bytes(data).partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status != 200:
            return status, rest.decode(errors="replace")[:300]
        if b"chunked" not in head.lower():
            return status, json.loads(rest)["choices"][0]["text"]
        events = [line[6:] for line in _unchunked(rest).splitlines() if line.startswith(b"data: {")]
        return status, "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])

    def connection(self) -> socket.socket:
        """A new connection."""
        host, port = self.served.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=300)


def _post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json"
    )
    return f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _unchunked(data: bytes) -> bytes:
    body = bytearray()
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return bytes(body)


def resident_mb(pid: int) -> float:
    """Anonymous memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def soak(folder: Path, template: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Run the soak; return its counts."""
    template.write_text(TEMPLATE, encoding="utf-8")
    limits = ("--max-body-bytes", str(_MAX_BODY), "--max-num-seqs", str(_MAX_NUM_SEQS), "--max-queued", "40")
    verify = ("--verify", "commit", "--l0", "96", "--rho", "0.1", "--chat-template", template)
    with serving(folder, "--served-model-name", "demo", *limits, *verify) as served:
        bodies = request_bodies()
        alone = Soak(served, bodies, [], 0.0)
        expected = [alone.answer(body)[1] for body in bodies]
        if seconds > 120:
            # The prefix cache comes to hold all texts, and as many long ones as can run do so at once. Else
            # the peak comes at any time of the run, and looks like growth.
            with ThreadPoolExecutor(_MAX_NUM_SEQS) as pool:
                for _ in range(3):
                    list(pool.map(alone.answer, map(endless, bodies)))
        run = Soak(served, bodies, expected, time.monotonic() + seconds)
        threads = [threading.Thread(target=run.client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        memory, pause = [], min(5.0, seconds / 20)
        while time.monotonic() < run.ends:
            time.sleep(pause)
            memory.append(resident_mb(served.process.pid))
        for thread in threads:
            thread.join()
        served.wait_for(lambda: served.metric("vllm:num_requests_running") == 0, 120)
        served.wait_for(lambda: served.metric("vllm:num_requests_waiting") == 0, 120)
        settled = memory[round(60 / pause) if seconds > 120 else len(memory) // 2 :]
        quarter = max(1, len(settled) // 4)
        return {
            "clients": clients,
            "seconds": seconds,
            "counts": dict(sorted(run.counts.items())),
            "wrong": len(run.wrong),
            "first_wrong": run.wrong[:3],
            "memory_mb": [round(value, 1) for value in memory],
            "growth_mb": round(median(settled[-quarter:]) - median(settled[:quarter]), 1),
            "kv_cache_usage_at_end": served.metric("vllm:kv_cache_usage_perc"),
        }


def main() -> None:
    """Run it as the options say; exit with 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    template = Path(f"/tmp/ovspec-soak-{time.time_ns()}.jinja")
    try:
        report = soak(demo_pair_path(), template, given.clients, given.seconds)
    finally:
        template.unlink(missing_ok=True)
    print(json.dumps(report, indent=2))
    sys.exit(bool(report["wrong"]))


if __name__ == "__main__":
    main()
