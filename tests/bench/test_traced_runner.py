"""Acceptance follows a trace in every pass, also in those that repeat a fixed graph."""

from __future__ import annotations

from pathlib import Path

import openvino_genai
import pytest

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.traced_runner import TraceDrafter, TracedRunner
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.request import Request
from ovspec.generation.generation_config import resolve, updated
from ovspec.runtime import background_compile
from ovspec.runtime.fixed_graphs import FixedGraphs


def test_passes_of_fixed_graphs_follow_it(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 3)
    repeated, forward_next = list[bool](), FixedGraphs.forward_next

    def noted(self: FixedGraphs, *given: object) -> object:
        repeated.append((found := forward_next(self, *given)) is not None)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(FixedGraphs, "forward_next", noted)
    runner, trace = TracedRunner(demo_ir), AcceptanceTrace.of("synthetic:3/4")
    given = {"max_new_tokens": 61, "ignore_eos": True, "num_assistant_tokens": 4}
    settings = resolve(updated(openvino_genai.GenerationConfig(), given), (), has_draft=True)
    for number in range(3):
        runner.replay(trace, commits=False)
        request = Request(str(number), [5, 6, 7, 8], settings)
        LLMEngine(runner, TraceDrafter(trace, 4096)).generate([request])
        assert request.metrics.accepted_lengths == [3] * 15
        assert runner.fixed_graphs is not None
        runner.fixed_graphs.wait()
    assert any(repeated)
