"""Real server processes with the embedded demo pair."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
openai = pytest.importorskip("openai")

F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Served:
    """A server process; `lines` are those of its standard error, as they come."""

    def __init__(self, process: subprocess.Popen[str], url: str, lines: list[str]) -> None:
        self.process, self.url, self.lines = process, url, lines

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found, name
        return sum(map(float, found))

    def wait_for(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, "it did not happen"
            time.sleep(0.05)


@contextmanager
def serving(folder: Path, *arguments: str | Path, **environment: str) -> Iterator[Served]:
    """`ovspec serve` in a process of its own, on a free port."""
    command = [
        Path(sys.executable).with_name("ovspec"),
        "serve",
        "-m",
        folder,
        "--port",
        "0",
        *F32,
        *arguments,
    ]
    process = subprocess.Popen(
        [str(word) for word in command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"serving .* on (http://\S+)", line):
                # A full pipe would stop the server.
                reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
                reader.start()
                yield Served(process, found[1], lines)
                break
        else:
            pytest.fail("".join(lines))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(60)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "chat.jinja"
    path.write_text(TEMPLATE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def served(demo_ir: Path, template: Path) -> Iterator[Served]:
    """A server of the demo pair in f32 with commits, which serves dense requests as well."""
    verify = ("--verify", "commit", "--l0", "96", "--rho", "0.1")
    with serving(demo_ir, "--chat-template", template, "--served-model-name", "demo", *verify) as served:
        yield served
