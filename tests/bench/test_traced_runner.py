"""Acceptance follows a trace in every pass."""

from __future__ import annotations

from pathlib import Path

import openvino_genai

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.traced_runner import TraceDrafter, TracedRunner
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import resolve, updated


def test_acceptance_follows_it(demo_ir: Path) -> None:
    runner, trace = TracedRunner(demo_ir), AcceptanceTrace.of("synthetic:3/4")
    given = {"max_new_tokens": 61, "ignore_eos": True, "num_assistant_tokens": 4}
    settings = resolve(updated(openvino_genai.GenerationConfig(), given), (), has_draft=True)
    for number in range(2):
        runner.replay(trace, commits=False)
        request = Request(str(number), [5, 6, 7, 8], settings)
        LLMEngine(runner, TraceDrafter(trace, 4096)).generate([request])
        assert request.metrics.accepted_lengths == [3] * 15
