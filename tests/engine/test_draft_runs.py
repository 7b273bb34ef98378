"""Passes that verify drafts one behind the other, several in a step: the same text, and true counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai
import pytest
from settings import F32

import ovspec
from ovspec.engine import llm_engine
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.request import Request
from ovspec.generation.generation_config import resolve, updated
from ovspec.runtime import background_compile
from ovspec.runtime.fixed_graphs import FixedGraphs
from ovspec.runtime.pass_inputs import PassInputs

PROMPT = "Once upon a time there was a little girl named Lily. She"
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "rng_seed": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "penalty": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "odd length": {"max_new_tokens": 37},
    "stop string": {"stop_strings": {" and she"}},
    "end of text": {"ignore_eos": False, "max_new_tokens": 400},
    "lenient": {"acceptance_threshold": 0.3},
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 4)


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass from now on that repeats the graph of the last one."""
    found, forward_next = list[int](), FixedGraphs.forward_next

    def noted(self: FixedGraphs, sequence: Any, tokens: Any) -> Any:
        result = forward_next(self, sequence, tokens)
        if result is not None:
            found.append(len(tokens))
        return result

    monkeypatch.setattr(FixedGraphs, "forward_next", noted)
    return found


def pipeline(folder: Path, draft: str) -> ovspec.LLMPipeline:
    """With the graphs of its passes compiled."""
    made = ovspec.LLMPipeline(folder, "CPU", draft_model=ovspec.draft_model(folder / draft), **F32)
    for _ in range(2):
        answer(made)
        graphs = made.engine.engine.target.fixed_graphs
        assert graphs is not None
        graphs.wait()
        made.engine.engine.drafter._unrolled.wait()
    return made


def answer(made: ovspec.LLMPipeline, **options: Any) -> Any:
    given = {"max_new_tokens": 80, "ignore_eos": True, "num_assistant_tokens": 4, **options}
    return made.generate([PROMPT], **given)


def request(name: str, prompt: list[int], max_new_tokens: int) -> Request:
    given = {"max_new_tokens": max_new_tokens, "ignore_eos": True, "num_assistant_tokens": 4}
    settings = resolve(updated(openvino_genai.GenerationConfig(), given), (), has_draft=True)
    return Request(name, prompt, settings, "dense")


@pytest.mark.parametrize("draft", ["draft", "eagle3"])
def test_texts_and_counts_are_those_of_single_passes(
    demo_ir: Path, repeated: list[int], monkeypatch: pytest.MonkeyPatch, draft: str
) -> None:
    made, found = pipeline(demo_ir, draft), {}
    for case, options in OPTIONS.items():
        repeated.clear()
        found[case] = answer(made, **options)
        assert 5 in repeated, case
    monkeypatch.setattr(FixedGraphs, "forward_next", lambda self, sequence, tokens: None)
    monkeypatch.setattr(llm_engine, "AT_ONCE", 0.0)
    for case, several in found.items():
        single = answer(made, **OPTIONS[case])
        assert several.texts == single.texts, case
        counts = [result.perf_metrics.raw_metrics for result in (several, single)]
        for name in ("accepted_lengths", "proposed_lengths", "num_assistant_tokens", "attended_tokens"):
            assert len({str(getattr(raw, name)) for raw in counts}) == 1, (case, name)
        for name in ("verify_durations", "m_durations", "host_durations", "m_batch_sizes"):
            assert len({len(getattr(raw, name)) for raw in counts}) == 1, (case, name)


def test_a_step_of_one_request_has_several_passes(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine; beside another request it has one."""
    monkeypatch.setattr(llm_engine, "AT_ONCE", 1e9)
    engine: LLMEngine = pipeline(demo_ir, "draft").engine.engine

    def start(*names: str) -> dict[str, list[int]]:
        for number, name in enumerate(names):
            engine.add_request(request(name, [5, 6, 7, 8 + number], 40))
        return {name: [] for name in names}

    def step() -> list[int]:
        """Tokens of every output."""
        counts = []
        for output in engine.step():
            texts[output.request_id] += output.token_ids
            counts.append(len(output.token_ids))
        return counts

    texts = start("alone")
    assert step() == [1]  # the first token is handed out at once
    assert step() == [39]
    alone, texts = texts["alone"], start("alone", "other")
    while engine.has_unfinished_requests:
        assert max(step(), default=0) <= 5 or len(engine._states) < 2
    assert texts["alone"] == alone


def test_a_cancelled_text_ends_with_its_step(demo_ir: Path) -> None:
    made, pieces = pipeline(demo_ir, "draft"), list[str]()

    def streamer(piece: str) -> openvino_genai.StreamingStatus:
        pieces.append(piece)
        full = len(pieces) == 9
        return openvino_genai.StreamingStatus.CANCEL if full else openvino_genai.StreamingStatus.RUNNING

    options = {"max_new_tokens": 1000, "ignore_eos": True, "num_assistant_tokens": 4}
    whole = made.generate(PROMPT, **options)
    cancelled = made.generate([PROMPT], streamer=streamer, **options)
    assert len(pieces) == 9 and whole.startswith("".join(pieces))
    assert cancelled.perf_metrics.get_num_generated_tokens() < 300
    assert made.generate(PROMPT, **options) == whole


def test_a_pass_cut_short_before_its_inputs_is_not_gone_on_from(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has the inputs of another request then."""
    engine: LLMEngine = pipeline(demo_ir, "draft").engine.engine
    first, second = list(range(100, 140)), list(range(300, 350))

    def rest(found: list[int]) -> list[int]:
        while engine.has_unfinished_requests:
            for output in engine.step():
                found += output.token_ids
        return found

    engine.add_request(request("whole", second, 60))
    whole = rest([])
    engine.add_request(request("other", first, 60))
    rest([])
    write, cut = PassInputs.write, [False]

    def interrupted(self: PassInputs, values: Any) -> None:
        if len(values["input_ids"]) == 5 and self is not target._inputs and not cut[0]:
            cut[0] = True
            raise KeyboardInterrupt
        write(self, values)

    target = engine.target
    monkeypatch.setattr(PassInputs, "write", interrupted)
    engine.add_request(request("cut", second, 60))
    found = list[int]()
    with pytest.raises(KeyboardInterrupt):
        rest(found)
    engine.recover()
    assert rest(found) == whole


def test_tokens_of_a_full_cache_are_handed_out(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer ends where prompt and answer fill it."""
    monkeypatch.setattr(llm_engine, "AT_ONCE", 1e9)
    engine: LLMEngine = pipeline(demo_ir, "draft").engine.engine
    engine.target.limit_cache(4 * engine.target.cache.block_bytes, 0)
    engine.add_request(request("long", [5, 6, 7, 8], 500))
    found, errors = 0, []
    while engine.has_unfinished_requests:
        for output in engine.step():
            assert not (output.token_ids and output.error)
            found += len(output.token_ids)
            errors += [output.error] if output.error else []
    assert found == 4 * engine.target.block_size - 4 and not errors
