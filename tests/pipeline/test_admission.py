"""Calls of several threads share a pipeline; those that can't are refused by name, and no text is wrong."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from settings import F32

import ovspec
from ovspec.engine.engine_thread import EngineThread
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.passes.tables import Rows

PROMPTS = [f"Once upon a time number {i} there was" for i in range(8)]
OPTIONS = {"max_new_tokens": 8}
ROUNDS = [pytest.param(80, id="80"), pytest.param(1000, id="1000", marks=pytest.mark.sweep)]


@pytest.fixture(scope="module", params=["plain", "draft"])
def pipeline(request: pytest.FixtureRequest, demo_ir: Path) -> ovspec.LLMPipeline:
    draft = ovspec.draft_model(demo_ir / "draft") if request.param == "draft" else None
    drafter = "assistant" if draft else "none"
    return ovspec.LLMPipeline(demo_ir, "CPU", draft_model=draft, drafter=drafter, **F32)


@pytest.mark.parametrize("calls", ROUNDS)
def test_threads_get_the_text_of_a_call_alone(pipeline: ovspec.LLMPipeline, calls: int) -> None:
    want = [pipeline.generate(prompt, **OPTIONS) for prompt in PROMPTS]
    start = threading.Barrier(8)

    def several(thread: int) -> list[bool]:
        start.wait()
        which = [(thread + number) % len(PROMPTS) for number in range(calls // 8)]
        return [pipeline.generate(PROMPTS[number], **OPTIONS) == want[number] for number in which]

    with ThreadPoolExecutor(8) as threads:
        assert all(all(right) for right in threads.map(several, range(8)))
    assert [pipeline.generate(prompt, **OPTIONS) for prompt in PROMPTS] == want
    assert pipeline.runner.blocks.usage == 0.0


REENTRANT: dict[str, Any] = {
    "generate": lambda pipeline: pipeline.generate("Hi", max_new_tokens=2),
    "start_chat": lambda pipeline: pipeline.start_chat(),
    "finish_chat": lambda pipeline: pipeline.finish_chat(),
    "setting verify": lambda pipeline: setattr(pipeline, "verify", "dense"),
}


@pytest.mark.parametrize("name", REENTRANT)
def test_a_streamer_that_calls_its_pipeline_is_refused(pipeline: ovspec.LLMPipeline, name: str) -> None:
    want = pipeline.generate(PROMPTS[0], **OPTIONS)
    refusals: list[str] = []

    def streamer(piece: str) -> None:
        with pytest.raises(ovspec.PipelineBusyError) as refused:
            REENTRANT[name](pipeline)
        refusals.append(str(refused.value))

    assert pipeline.generate(PROMPTS[0], streamer=streamer, **OPTIONS) == want
    assert refusals and all(
        line.startswith(f"{name}: called from inside generate of the same pipeline") for line in refusals
    )


def test_a_call_of_another_thread_runs_beside_a_slow_streamer(pipeline: ovspec.LLMPipeline) -> None:
    want = pipeline.generate(PROMPTS[1], **OPTIONS)
    found: list[str] = []

    def streamer(piece: str) -> bool:
        thread = threading.Thread(target=lambda: found.append(pipeline.generate(PROMPTS[1], **OPTIONS)))
        thread.start()
        thread.join(60)
        return True

    pipeline.generate(PROMPTS[0], streamer=streamer, **OPTIONS)
    assert found == [want]


def test_a_call_that_runs_alone_tells_another_thread_so(pipeline: ovspec.LLMPipeline) -> None:
    errors: list[str] = []

    def other() -> None:
        try:
            pipeline.start_chat()
        except ovspec.PipelineBusyError as error:
            errors.append(str(error))

    def streamer(piece: str) -> bool:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return True

    pipeline.generate(PROMPTS[0], streamer=streamer, **OPTIONS)
    assert errors == [
        "start_chat: this pipeline is busy with generate in thread 'MainThread', and start_chat runs alone; "
        "wait until generate has returned, or make a second pipeline"
    ]


@pytest.mark.parametrize("in_thread", [False, True], ids=["its caller's", "its own"])
def test_a_failed_step_fails_its_requests_and_no_later_ones(
    pipeline: ovspec.LLMPipeline, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineThread(pipeline.engine.engine)
    settings = pipeline.settings(max_new_tokens=8)
    prompt = np.array(pipeline.get_tokenizer().encode(PROMPTS[0]).input_ids.data)[0].tolist()

    def tokens(name: str) -> list[int]:
        give = engine.submit if in_thread else lambda request: engine.run([request])
        return [t for output in give(Request(name, prompt, settings)) for t in output.token_ids]

    want = tokens("first")
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.runner, "forward", lambda batch: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            tokens("second")
    assert tokens("third") == want and pipeline.runner.blocks.usage == 0.0
    engine.close()
    with pytest.raises(RuntimeError, match="the engine is closed"):
        tokens("fourth")


def test_a_thread_of_its_own_takes_over_from_a_caller(
    pipeline: ovspec.LLMPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, settings = EngineThread(pipeline.engine.engine), pipeline.settings(max_new_tokens=6)
    steps, goes_on, forward = threading.Event(), threading.Event(), pipeline.runner.forward

    def waiting(batch: list[Rows]) -> Any:
        steps.set()
        assert goes_on.wait(60)
        return forward(batch)

    monkeypatch.setattr(pipeline.runner, "forward", waiting)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(
            lambda: [o.token_ids for o in engine.run([Request("first", [5, 6, 7], settings)])]
        )
        assert steps.wait(60)
        outputs: queue.Queue[RequestOutput] = queue.Queue()

        def fails(output: RequestOutput) -> None:
            outputs.put(output)
            raise ZeroDivisionError

        engine.submit(Request("second", [5, 6, 7], settings), fails)
        goes_on.set()
        tokens: list[int] = []
        while not (output := outputs.get(timeout=60)).finished:
            tokens += output.token_ids
        assert [*tokens, *output.token_ids] == [token for some in first.result(60) for token in some]
    engine.close()
