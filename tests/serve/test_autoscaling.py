"""`--ray --replicas LEAST:MOST`: replicas come with load, and end when it has gone."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path

import pytest

from ovspec import LLMPipeline
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.pipeline.outline import Outline
from ovspec.serve.backend import Backend
from ovspec_models import ModelInfo

serve = pytest.importorskip("ray.serve", reason="no Ray: install the extra ray")
pytestmark = pytest.mark.slow

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROMPT = "Once upon a time, there was a little girl named Lily. She"
SECONDS = 240.0


def running() -> int:
    states = serve.status().applications["ovspec-demo"].deployments["replica"].replica_states
    return states.get("RUNNING", 0)


async def until(replicas: int) -> None:
    async with asyncio.timeout(SECONDS):
        while running() != replicas:
            await asyncio.sleep(0.5)


async def load(backend: Backend) -> list[list[int]]:
    """Three clients at one answer a time each, until a second replica runs; then none. Their answers."""
    prompt = backend.requests.get_tokenizer().encode(PROMPT).input_ids.data.reshape(-1).tolist()
    settings = backend.requests.settings(max_new_tokens=100, ignore_eos=True)
    names, answers, goes_on = itertools.count(), list[list[int]](), True

    async def client() -> None:
        while goes_on:
            outputs = asyncio.Queue[RequestOutput]()
            backend.answers.submit(Request(f"{next(names)}", prompt, settings), outputs.put_nowait)
            answer, ended = list[int](), False
            while not ended:
                output = await outputs.get()
                assert output.error is None
                answer += output.token_ids
                ended = output.finished
            answers.append(answer)

    clients = [asyncio.create_task(client()) for _ in range(3)]
    await until(2)
    # Both answer now; and the end of one must not end the answers that it has in work.
    await asyncio.sleep(5)
    goes_on = False
    await asyncio.gather(*clients)
    await until(1)
    goes_on = True
    last = asyncio.create_task(client())
    await asyncio.sleep(0)
    goes_on = False
    await last
    return answers


def test_replicas_follow_the_load(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Needs Ray, as `serve` above.
    from ovspec.serve.cluster.cluster import ClusterSettings, on_cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    outline = Outline(ModelInfo.read(demo_ir), "dense", None)
    settings = ClusterSettings(least=1, most=2, cpus=1, upscale_seconds=2.0, downscale_seconds=5.0)
    make = partial(LLMPipeline, demo_ir, "CPU", **F32)
    with on_cluster("demo", make, outline, settings, 1, 60.0) as backend:
        assert running() == 1
        answers = asyncio.run(load(backend))
    assert len(answers) >= 4 and all(answer == answers[0] for answer in answers)
