"""`--ray`: two replicas on this machine, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve.conftest import F32, Served, serving
from serve.test_batch import answers, arguments, requests

pytest.importorskip("ray", reason="no Ray: install the extra ray")
pytestmark = pytest.mark.slow
# Ray gives up soon where the machine is busy.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "600"}
ON_RAY = ("--ray", "--replicas", "2", "--replica-cpus", "1")
PROMPTS = ["Once upon a time, there was a little girl named Lily. She", "Tom had a big red ball. One day"]
BODIES = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 0.8, "top_p": 0.9, "seed": 6, "presence_penalty": 0.7, "logprobs": 1},
    {"temperature": 0, "num_assistant_tokens": 3, "frequency_penalty": 0.3},
]


def below(process: int, name: str) -> list[int]:
    """Processes that a process started, or those below it, whose command line begins with a name."""
    parents, found = dict[int, int](), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    for number in parents:
        above = number
        while above in parents and above != process:
            above = parents[above]
        if above == process:
            words = Path(f"/proc/{number}/cmdline")
            if words.exists() and words.read_text().startswith(name):
                found.append(number)
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(demo_ir: Path, template: Path) -> Iterator[Served]:
    verify = ("--verify", "commit", "--l0", "96", "--rho", "0.1")
    options = ("--chat-template", template, "--served-model-name", "demo", *verify)
    with serving(demo_ir, *options, *ON_RAY, **ENVIRONMENT) as served:
        yield served


def stream(served: Served, body: dict[str, Any], seen: list[str]) -> tuple[str, str]:
    """Text and reason of a stream; its pieces are added to `seen` as they come."""
    reason = ""
    options = {**body, "extra_body": {"ignore_eos": True, **body.get("extra_body", {})}}
    number = options.pop("num_assistant_tokens", None)
    if number is not None:
        options["extra_body"]["num_assistant_tokens"] = number
    for chunk in served.client().completions.create(model="demo", max_tokens=150, stream=True, **options):
        seen.append(chunk.choices[0].text)
        reason = chunk.choices[0].finish_reason or reason
    return "".join(seen), reason


def test_a_killed_replica_loses_no_request(cluster: Served) -> None:
    bodies = [{"prompt": prompt, **body} for prompt in PROMPTS for body in BODIES]
    expected = [stream(cluster, body, []) for body in bodies]  # alone
    replicas = below(cluster.process.pid, "ray::ServeReplica")
    assert len(replicas) == 2
    seen: list[list[str]] = [[] for _ in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        found = pool.map(stream, [cluster] * len(bodies), bodies, seen)
        wait_for(lambda: all(len(one) > 3 for one in seen[: len(bodies) // 2]))
        assert cluster.metric("vllm:num_requests_running") >= 4
        os.kill(replicas[0], signal.SIGKILL)
        late = pool.submit(stream, cluster, bodies[0], [])  # while one replica is gone
        assert list(found) == expected
        assert late.result() == expected[0]
    wait_for(lambda: len(below(cluster.process.pid, "ray::ServeReplica")) == 2)
    assert replicas[1] in below(cluster.process.pid, "ray::ServeReplica")
    assert cluster.metric("vllm:num_requests_running") == 0


def test_common_beginnings_meet_in_one_replica(cluster: Served) -> None:
    wait_for(lambda: len(below(cluster.process.pid, "ray::ServeReplica")) == 2)
    system = "The cat sat on the mat and looked at the moon. " * 20
    hits = []
    for number in range(6):
        before = cluster.metric("vllm:prefix_cache_hits_total")
        status, _ = cluster.post("/v1/completions", {"prompt": f"{system}{number}", "max_tokens": 4})
        assert status == 200
        hits.append(cluster.metric("vllm:prefix_cache_hits_total") - before)
    assert hits[0] == 0 and min(hits[1:]) > 100


def test_beams_of_a_replica(cluster: Served) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "use_beam_search": True, "n": 3}
    status, answer = cluster.post("/v1/completions", body)
    assert status == 200 and len({choice["text"] for choice in answer["choices"]}) == 3
    status, answer = cluster.post("/v1/completions", {**body, "stop": "."})
    assert status == 400 and answer["error"]["message"].startswith("stop: on a cluster beams know no")


def test_refusals_and_vanished_clients(cluster: Served) -> None:
    status, body = cluster.post("/v1/completions", {"prompt": PROMPTS[0], "temperature": 9})
    assert status == 400 and body["error"]["param"] == "temperature"
    with cluster.client().completions.create(
        model="demo", prompt=PROMPTS[0], max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    ) as chunks:
        next(iter(chunks))
    cluster.wait_for(lambda: cluster.metric("vllm:num_requests_running") == 0)


def test_without_a_replica_the_server_is_not_healthy(cluster: Served) -> None:
    def health() -> int:
        return httpx.get(f"{cluster.url}/health", timeout=30).status_code

    wait_for(lambda: health() == 200)
    for number in below(cluster.process.pid, "ray::ServeReplica"):
        os.kill(number, signal.SIGKILL)
    wait_for(lambda: health() == 503)
    wait_for(lambda: health() == 200)  # Ray starts others


def listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def head() -> Iterator[dict[str, str]]:
    """A cluster as docs/deployment.md starts it, and the environment of its servers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    ray = Path(sys.executable).with_name("ray")
    command = [ray, "start", "--head", "--block", "--port", str(port), "--num-cpus", "4"]
    command += ["--include-dashboard", "false", "--node-ip-address", "127.0.0.1"]
    process = subprocess.Popen(
        list(map(str, command)),
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: listens(port))
        yield {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        process.terminate()
        process.wait(60)


def test_servers_of_one_cluster_leave_each_other_alone(demo_ir: Path, head: dict[str, str]) -> None:
    one = ("--ray", "--replicas", "1", "--replica-cpus", "1")
    body = {"prompt": PROMPTS[0], "max_tokens": 4}
    with serving(demo_ir, *one, "--served-model-name", "demo", **head) as first:
        assert first.post("/v1/completions", body)[0] == 200
        command = [Path(sys.executable).with_name("ovspec"), "serve", "-m", demo_ir, "--port", "0", *one]
        words = [*command, "--served-model-name", "demo"]
        run = subprocess.run(
            list(map(str, words)), env={**os.environ, **head}, capture_output=True, text=True
        )
        assert run.returncode == 2 and "another server has this name" in run.stderr.strip().splitlines()[-1]
        with serving(demo_ir, *one, "--served-model-name", "other", **head) as second:
            assert second.post("/v1/completions", body)[0] == 200
            second.process.send_signal(signal.SIGTERM)
            second.process.wait(60)
        assert first.post("/v1/completions", body)[0] == 200
        first.process.kill()  # its replicas stay, until another server has its name
    with serving(demo_ir, *one, "--served-model-name", "demo", **head) as third:
        assert third.post("/v1/completions", body)[0] == 200
        stranger = {**os.environ, **head, "RAY_AUTH_TOKEN": "f" * 64}
        run = subprocess.run(
            list(map(str, command)), env=stranger, capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 2 and "--ray: no Ray cluster" in run.stderr


def test_a_killed_batch_goes_on(demo_ir: Path, tmp_path: Path) -> None:
    asked, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text("\n".join(requests(24, 60)), encoding="utf-8")
    options = arguments(demo_ir, asked, written, *ON_RAY, "--max-num-seqs", "2")
    command = [str(Path(sys.executable).with_name("ovspec")), *options]
    environment = {**os.environ, **ENVIRONMENT}

    def lines() -> int:
        return written.read_bytes().count(b"\n") if written.is_file() else 0

    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    wait_for(lambda: lines() >= 2 or first.poll() is not None)
    first.kill()
    first.wait()
    kept = written.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    count = kept.count(b"\n")
    assert 2 <= count < 24
    # The second run loses a replica, whose part another one answers.
    second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    wait_for(lambda: bool(below(second.pid, "ray::MapWorker")) and lines() > count)
    os.kill(below(second.pid, "ray::MapWorker")[0], signal.SIGKILL)
    _, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert f"{count} are answered already" in said
    assert written.read_bytes().startswith(kept)
    whole = tmp_path / "whole.jsonl"
    plain = [str(Path(sys.executable).with_name("ovspec")), *arguments(demo_ir, asked, whole)]
    subprocess.run(plain, check=True, stderr=subprocess.DEVNULL)
    texts = [
        {name: one["body"]["choices"] for name, one in answers(path).items()} for path in (written, whole)
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 24


def test_no_cluster_at_an_address_is_one_line(demo_ir: Path) -> None:
    command = [Path(sys.executable).with_name("ovspec"), "serve", "-m", demo_ir, "--port", "0", *F32, *ON_RAY]
    run = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:9", "RAY_gcs_rpc_server_reconnect_timeout_s": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 2 and "RAY_ADDRESS" in run.stderr.strip().splitlines()[-1]
