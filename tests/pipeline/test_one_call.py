"""One pipeline runs one call at a time: a second one is refused by name, and neither text is wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from settings import F32

import ovspec

PROMPTS = [f"Once upon a time number {i} there was" for i in range(8)]
OPTIONS = {"max_new_tokens": 8}
ROUNDS = [pytest.param(80, id="80"), pytest.param(1000, id="1000", marks=pytest.mark.sweep)]


@pytest.fixture(scope="module", params=["plain", "draft"])
def pipeline(request: pytest.FixtureRequest, demo_ir: Path) -> ovspec.LLMPipeline:
    draft = ovspec.draft_model(demo_ir / "draft") if request.param == "draft" else None
    return ovspec.LLMPipeline(demo_ir, "CPU", draft_model=draft, **F32)


@pytest.mark.parametrize("calls", ROUNDS)
def test_threads_get_the_right_text_or_a_refusal(pipeline: ovspec.LLMPipeline, calls: int) -> None:
    want = [pipeline.generate(prompt, **OPTIONS) for prompt in PROMPTS]
    start = threading.Barrier(8)

    def several(thread: int) -> list[str]:
        start.wait()
        outcomes = []
        for number in range(calls // 8):
            which = (thread + number) % len(PROMPTS)
            try:
                right = pipeline.generate(PROMPTS[which], **OPTIONS) == want[which]
                outcomes.append("right" if right else "wrong")
            except ovspec.PipelineBusyError:
                outcomes.append("refused")
        return outcomes

    with ThreadPoolExecutor(8) as threads:
        outcomes = [outcome for several_of in threads.map(several, range(8)) for outcome in several_of]
    assert set(outcomes) <= {"right", "refused"} and "right" in outcomes and len(outcomes) == calls
    assert [pipeline.generate(prompt, **OPTIONS) for prompt in PROMPTS] == want


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


def test_another_thread_is_told_who_is_running_and_what_to_do(pipeline: ovspec.LLMPipeline) -> None:
    errors: list[str] = []

    def other() -> None:
        try:
            pipeline.generate("Hi", max_new_tokens=2)
        except RuntimeError as error:
            errors.append(str(error))

    def streamer(piece: str) -> bool:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return True

    pipeline.generate(PROMPTS[0], streamer=streamer, **OPTIONS)
    assert errors == [
        "generate: this pipeline is busy with generate in thread 'MainThread', and runs one call at a time; "
        "make one pipeline per thread, or wait until generate has returned"
    ]
