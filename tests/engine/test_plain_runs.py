"""Passes of a single plain request that follow each other in one step: the same text, and true counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino_genai
import pytest
from settings import F32

import ovspec
from ovspec.engine import llm_engine, speculation
from ovspec.engine.llm_engine import AT_ONCE, LLMEngine
from ovspec.engine.request import Request
from ovspec.engine.speculation import Speculation
from ovspec.generation.generation_config import resolve, updated
from ovspec.runtime import background_compile
from ovspec.runtime.fixed_graphs import FixedGraphs

PROMPT = "Once upon a time there was a little girl named Lily. She"
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "rng_seed": 3},
    "penalty": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "odd length": {"max_new_tokens": 37},
    "stop string": {"stop_strings": {" and she"}},
    "end of text": {"ignore_eos": False, "max_new_tokens": 400},
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 2)


@pytest.fixture(autouse=True)
def three_passes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine: a step ends with the pass that fills its time."""
    now, forward_next = [0.0], FixedGraphs.forward_next

    def timed(self: FixedGraphs, *given: Any) -> Any:
        now[0] += AT_ONCE / 2.5
        return forward_next(self, *given)

    monkeypatch.setattr(FixedGraphs, "forward_next", timed)
    for module in (speculation, llm_engine):
        monkeypatch.setattr(module, "microseconds", lambda: now[0])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Passes of every plain step from now on."""
    counts, decode = list[int](), Speculation._decode_plainly

    def counted(self: Speculation, state: Any) -> Any:
        step = decode(self, state)
        counts.append(step.passes)
        return step

    monkeypatch.setattr(Speculation, "_decode_plainly", counted)
    return counts


@pytest.fixture
def singly(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on every step is one pass."""
    return lambda: monkeypatch.setattr(Speculation, "_is_plain", lambda self, plan: False)


def pipeline(folder: Path, **options: Any) -> ovspec.LLMPipeline:
    """With the graph of one row compiled."""
    made = ovspec.LLMPipeline(folder, "CPU", **options, **F32)
    made.generate("The", max_new_tokens=8, ignore_eos=True)
    graphs = made.engine.engine.target.fixed_graphs
    assert graphs is not None
    graphs.wait()
    return made


def answer(made: ovspec.LLMPipeline, **options: Any) -> Any:
    return made.generate([PROMPT], **{"max_new_tokens": 80, "ignore_eos": True, **options})


@pytest.mark.parametrize("case", OPTIONS)
def test_texts_are_those_of_single_passes(
    demo_ir: Path, passes: list[int], singly: Callable[[], None], case: str
) -> None:
    made = pipeline(demo_ir)
    several = answer(made, **OPTIONS[case])
    assert max(passes) == 3
    singly()
    alone = answer(made, **OPTIONS[case])
    assert several.texts == alone.texts
    counts = [r.perf_metrics for r in (several, alone)]
    assert len({m.get_num_generated_tokens() for m in counts}) == 1
    assert len({len(m.raw_metrics.verify_durations) for m in counts}) == 1
    assert len({len(m.raw_metrics.m_durations) for m in counts}) == 1
    assert len({m.get_attention_density() for m in counts}) == 1


def test_a_streamer_gets_token_by_token_and_may_cancel(demo_ir: Path, passes: list[int]) -> None:
    made, pieces = pipeline(demo_ir), list[str]()

    def streamer(piece: str) -> openvino_genai.StreamingStatus:
        pieces.append(piece)
        full = len(pieces) == 9
        return openvino_genai.StreamingStatus.CANCEL if full else openvino_genai.StreamingStatus.RUNNING

    whole = answer(made).texts[0]
    passes.clear()
    made.generate(PROMPT, max_new_tokens=80, ignore_eos=True, streamer=streamer)
    assert max(passes) == 3 and len(pieces) == 9
    assert whole.startswith("".join(pieces)) and len("".join(pieces)) < len(whole) / 3
    assert answer(made).texts[0] == whole  # also from the blocks that it left in the prefix cache


def test_schedules_count_every_pass(demo_ir: Path, passes: list[int], singly: Callable[[], None]) -> None:
    made = pipeline(demo_ir, drafter="prompt_lookup")
    several = answer(made, num_assistant_tokens_schedule="auto", max_new_tokens=200)
    assert max(passes) == 3
    raw = several.perf_metrics.raw_metrics
    assert len(raw.num_assistant_tokens) == len(raw.verify_durations) == len(raw.host_durations)
    singly()
    alone = answer(made, num_assistant_tokens_schedule="auto", max_new_tokens=200)
    assert several.texts == alone.texts


def test_others_join_between_passes(demo_ir: Path, passes: list[int], singly: Callable[[], None]) -> None:
    made = pipeline(demo_ir)
    engine: LLMEngine = made.engine.engine

    def together() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, text in (("first", [5, 6, 7]), ("second", [9, 8, 7, 6])):
            settings = resolve(
                updated(openvino_genai.GenerationConfig(), {"max_new_tokens": 60, "ignore_eos": True}),
                (),
                has_draft=False,
            )
            engine.add_request(Request(name, text, settings, "dense"))
            for _ in range(5):
                for output in engine.step():
                    found.setdefault(output.request_id, []).extend(output.token_ids)
        while engine.has_unfinished_requests:
            for output in engine.step():
                found.setdefault(output.request_id, []).extend(output.token_ids)
        return found

    several = together()
    assert max(passes) == 3
    singly()
    assert together() == several
