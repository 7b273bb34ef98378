"""Points in which code written for openvino_genai met something else: the same call on both pipelines."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest
from openvino_genai import ChatHistory, StreamingStatus
from prompts import PROMPTS
from settings import F32

import ovspec

Make = Callable[..., ovspec.LLMPipeline]
PROMPT = PROMPTS[0]
TWELVE = {"max_new_tokens": 12}


class Shouting(openvino_genai.IncrementalParser):
    """Capitals, and a count of the pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def reset(self) -> None:
        self.pieces = []

    def parse(self, message: dict[str, str], text: str, tokens: list[int] | None = None) -> str:
        self.pieces.append(text)
        message["pieces"] = "I"
        return text.upper()


class Messages(openvino_genai.TextParserStreamer):
    """Keeps the messages; stops after so many."""

    def __init__(self, tokenizer: openvino_genai.Tokenizer, parser: Shouting, limit: int) -> None:
        super().__init__(tokenizer, [parser])
        self.messages: list[dict[str, str]] = []
        self._limit = limit

    def write(self, message: dict[str, str]) -> StreamingStatus:
        self.messages.append(message)
        return StreamingStatus.RUNNING if len(self.messages) < self._limit else StreamingStatus.STOP


@pytest.mark.parametrize("draft", [False, True])
def test_parsers_of_a_streamer_run(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, draft: bool
) -> None:
    def parsed(pipeline: Any) -> tuple[Any, ...]:
        parser = Shouting()
        streamer = Messages(pipeline.get_tokenizer(), parser, 1000)
        results = pipeline.generate([PROMPT], streamer=streamer, **TWELVE)
        return parser.pieces, streamer.messages, streamer.get_parsed_message(), results.parsed, results.texts

    mine, theirs = parsed(make_pipeline(draft=draft)), parsed(genai)
    assert mine[3][0]["content"] == mine[4][0].upper()
    # Several tokens at once give fewer pieces; the message is the same.
    assert (mine[3][0]["content"], mine[4]) == (theirs[3][0]["content"], theirs[4])
    assert draft or mine == theirs


def test_a_parser_streamer_stops(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    streamer = Messages(pipeline.get_tokenizer(), Shouting(), 3)
    results = pipeline.generate([PROMPT], streamer=streamer, **TWELVE)
    assert results.perf_metrics.get_num_generated_tokens() < 12 and len(streamer.messages) <= 4


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", float("inf")), ("temperature", -1.0), ("rng_seed", -1)]
)
def test_numbers_out_of_range_are_refused_as_both_kinds_of_error(
    make_pipeline: Make, name: str, value: float
) -> None:
    with pytest.raises(RuntimeError, match=name) as refused:
        make_pipeline().generate(PROMPT, do_sample=True, **{name: value}, **TWELVE)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("answer", ["stop", {"stop": True}, [], 0.0])
def test_answers_of_other_types_are_refused(make_pipeline: Make, answer: Any) -> None:
    with pytest.raises((RuntimeError, TypeError), match="streamer: it answered") as refused:
        make_pipeline().generate(PROMPT, streamer=lambda piece: answer, **TWELVE)
    assert isinstance(refused.value, TypeError) and "None goes on" in str(refused.value)
    assert make_pipeline().generate(PROMPT, streamer=lambda piece: np.bool_(False), **TWELVE)


def broken(folder: Path, name: str, body: bytes | None) -> None:
    (folder / name).unlink()
    if body is not None:
        (folder / name).write_bytes(body)


CONSTRUCTORS: dict[str, Callable[[Path], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "no folder": lambda folder: ((folder / "nowhere", "CPU"), {}),
    "no model": lambda folder: (broken(folder, "openvino_model.xml", None), ((folder, "CPU"), {}))[1],
    "damaged model": lambda folder: (broken(folder, "openvino_model.xml", b"<net"), ((folder, "CPU"), {}))[1],
    "damaged tokenizer": lambda folder: (
        broken(folder, "openvino_tokenizer.xml", b"<net"),
        ((folder, "CPU"), {}),
    )[1],
    "damaged generation config": lambda folder: (
        broken(folder, "generation_config.json", b"{"),
        ((folder, "CPU"), {}),
    )[1],
    "device": lambda folder: ((folder, "FPGA"), {}),
    "property": lambda folder: ((folder, "CPU"), {"FROBNICATE": 1}),
    "value of a property": lambda folder: ((folder, "CPU"), {"INFERENCE_PRECISION_HINT": "f7"}),
    "attention backend": lambda folder: ((folder, "CPU"), {"ATTENTION_BACKEND": "XX"}),
    "extension": lambda folder: ((folder, "CPU"), {"extensions": ["/nowhere.so"]}),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_refuse_with_the_same_kind_of_error(demo_ir: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_ir, folder)
    arguments, named = CONSTRUCTORS[name](folder)
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        openvino_genai.LLMPipeline(*arguments, **named)
    with pytest.raises(type(theirs.value)) as mine:
        ovspec.LLMPipeline(*arguments, **named)
    assert isinstance(mine.value, ValueError) and "\n" not in str(mine.value)


def test_properties_of_openvino_genai(demo_ir: Path, genai: openvino_genai.LLMPipeline) -> None:
    own = {"ATTENTION_BACKEND": "PA", "extensions": [ovspec.extension_path()]}
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", **own, **F32)
    assert pipeline.generate(PROMPT, **TWELVE) == genai.generate(PROMPT, **TWELVE)


def test_the_other_attention_backend_is_taken_with_a_warning(
    demo_ir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Code that asks openvino_genai for SDPA runs and writes the same text, and is told what runs."""
    stateful = openvino_genai.LLMPipeline(demo_ir, "CPU", ATTENTION_BACKEND="SDPA", **F32)
    with caplog.at_level(logging.WARNING):
        pipeline = ovspec.LLMPipeline(demo_ir, "CPU", ATTENTION_BACKEND="SDPA", **F32)
    assert "ATTENTION_BACKEND='SDPA': attention is paged all the same" in caplog.text
    assert pipeline.generate(PROMPT, **TWELVE) == stateful.generate(PROMPT, **TWELVE)


def test_a_model_without_a_type(demo_ir: Path, tmp_path: Path, genai: openvino_genai.LLMPipeline) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_ir, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    assert ovspec.LLMPipeline(folder, **F32).generate(PROMPT, **TWELVE) == genai.generate(PROMPT, **TWELVE)


def test_results_are_instances(make_pipeline: Make) -> None:
    results = make_pipeline().generate([PROMPT], **TWELVE)
    assert isinstance(results, openvino_genai.DecodedResults) and isinstance(results, ovspec.DecodedResults)
    assert str(results) == results.texts[0] == next(iter(results)) and results.parsed == []
    assert results.scores == [0.0] and len(results.finish_reasons) == 1


@pytest.mark.parametrize("stop", ["lay", "la", "ed to p", "pl", "ved", " play"])
def test_a_kept_stop_string_ends_with_its_token(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, stop: str
) -> None:
    options = {**TWELVE, "stop_strings": {stop}, "include_stop_str_in_output": True}
    tokens = genai.get_tokenizer().encode(PROMPT)
    pieces: list[str] = []
    texts = make_pipeline(draft=True).generate([PROMPT], streamer=pieces.append, **options).texts
    assert texts == genai.generate([PROMPT], **options).texts == ["".join(pieces)]
    assert make_pipeline().generate(tokens, **options).tokens == genai.generate(tokens, **options).tokens


def test_durations(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    raw = pipeline.generate([PROMPT], **TWELVE).perf_metrics.raw_metrics
    metrics = pipeline.generate([PROMPT], **TWELVE).perf_metrics
    steps = metrics.raw_metrics.sampling_durations
    assert metrics.get_sampling_duration().mean == pytest.approx(np.mean(steps) / 1e3)
    assert metrics.get_sampling_duration().std == pytest.approx(np.std(steps) / 1e3)
    assert raw.chat_template_durations == []
    pipeline.get_tokenizer().set_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    try:
        templated = pipeline.generate([PROMPT, PROMPT], **TWELVE).perf_metrics.raw_metrics
        plain = pipeline.generate([PROMPT], apply_chat_template=False, **TWELVE).perf_metrics.raw_metrics
    finally:
        pipeline.get_tokenizer().set_chat_template("")
    assert len(templated.chat_template_durations) == 1 and templated.chat_template_durations[0] > 0
    assert plain.chat_template_durations == [] and len(plain.tokenization_durations) == 1


def test_a_prompt_in_a_chat_template_writes_no_control_token(make_pipeline: Make) -> None:
    """As a message of a history; without the template its text is the whole prompt."""
    pipeline, hostile = make_pipeline(), "Once<|endoftext|>"
    pipeline.get_tokenizer().set_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    try:
        history = ChatHistory([{"role": "user", "content": hostile}])
        counts = [
            pipeline.generate(given, max_new_tokens=1, **more).perf_metrics.get_num_input_tokens()
            for given, more in (([hostile], {}), (history, {}), ([hostile], {"apply_chat_template": False}))
        ]
    finally:
        pipeline.get_tokenizer().set_chat_template("")
    assert counts[0] == counts[1] > counts[2] == 2


def test_metrics_of_target_and_drafts_apart(make_pipeline: Make, demo_ir: Path) -> None:
    mine = make_pipeline(draft=True).generate([PROMPT], num_assistant_tokens=3, **TWELVE)
    draft = openvino_genai.draft_model(demo_ir / "draft", "CPU", **F32)
    pair = openvino_genai.LLMPipeline(demo_ir, "CPU", draft_model=draft, **F32)
    theirs = pair.generate([PROMPT], num_assistant_tokens=3, **TWELVE).extended_perf_metrics
    metrics = mine.extended_perf_metrics
    assert metrics is not None
    for name in ("main_model_metrics", "draft_model_metrics"):
        ours, genais = getattr(metrics, name), getattr(theirs, name)
        for getter in ("get_inference_duration", "get_latency", "get_tpot", "get_throughput"):
            assert getattr(ours, getter)().mean > 0 and getattr(genais, getter)().mean > 0, getter
    assert metrics.main_model_metrics.get_num_generated_tokens() == 12
    assert theirs.main_model_metrics.get_num_generated_tokens() == 12
    both = [
        m.get_inference_duration().mean for m in (metrics.main_model_metrics, metrics.draft_model_metrics)
    ]
    assert metrics.get_draft_to_main_inference_duration_ratio() == pytest.approx(both[1] / both[0])
    assert both[0] < metrics.get_inference_duration().mean
