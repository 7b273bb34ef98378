"""Faults of one request, or of its caller, leave the engine's thread to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from engine.test_llm_engine import engine_of, settings_of
from families import family

from ovspec.engine import engine_thread
from ovspec.engine.engine_thread import EngineThread, RequestHandle
from ovspec.engine.requests.request import Request, RequestOutput

SECONDS = 60.0


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    thread = EngineThread(engine_of())
    yield thread
    thread.close(finish=False)


def request(name: str, **options: Any) -> Request:
    return Request(name, family("llama").prompts[0], settings_of(**options))


def answer(handle: RequestHandle) -> int:
    return sum(len(output.token_ids) for output in handle)


def test_a_callback_aborts_and_submits(thread: EngineThread) -> None:
    ended, other = threading.Event(), threading.Event()
    handles: list[RequestHandle] = []

    def first(output: RequestOutput) -> None:
        if not handles:
            handles.append(thread.submit(request("second", max_new_tokens=4), second))
            mine[0].abort()
        if output.finished:
            ended.set()

    def second(output: RequestOutput) -> None:
        if output.finished:
            other.set()

    mine: list[RequestHandle] = []
    with thread.lock:  # no output comes before the handle is known
        mine.append(thread.submit(request("first", max_new_tokens=64), first))
    assert ended.wait(SECONDS) and other.wait(SECONDS)


def test_a_step_that_fails_after_an_abort(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The aborted request has its last output; the others get the error, and later ones are answered."""
    step, failures = thread.engine.step, [RuntimeError("no memory")]
    running = threading.Event()
    go_on = threading.Event()

    def failing() -> list[RequestOutput]:
        if running.is_set() and failures:
            raise failures.pop()
        outputs = step()
        running.set()
        assert go_on.wait(SECONDS)
        return outputs

    monkeypatch.setattr(thread.engine, "step", failing)
    left = thread.submit(request("left", max_new_tokens=64))
    stays = thread.submit(request("stays", max_new_tokens=64))
    assert running.wait(SECONDS)
    left.abort()  # it waits for the end of the step
    go_on.set()
    assert answer(left) <= 64
    with pytest.raises(RuntimeError, match="no memory"):
        answer(stays)
    assert answer(thread.submit(request("later", max_new_tokens=4))) == 4


def test_a_penalty_that_overflows_ends_no_step(thread: EngineThread) -> None:
    others = thread.submit(request("others", max_new_tokens=8))
    assert answer(thread.submit(request("tiny", max_new_tokens=8, repetition_penalty=1e-38))) == 8
    assert answer(others) == 8


def test_a_thread_of_its_own_returns_freed_memory_as_it_steps(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load nobody else does, and the C library keeps it."""
    returned = list[int]()
    monkeypatch.setattr(engine_thread, "give_back_freed_memory", lambda: returned.append(1))
    thread.start()
    assert answer(thread.submit(request("soon", max_new_tokens=4))) == 4 and not returned
    monkeypatch.setattr(engine_thread, "_GIVE_BACK_EVERY", 0.0)
    assert answer(thread.submit(request("later", max_new_tokens=4))) == 4 and returned
