"""How answers end, what parsers make of them, and what is measured: the same calls on both pipelines."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai import ChatHistory, GenerationConfig, GenerationFinishReason, StreamingStatus
from openvino_genai.py_openvino_genai import RawPerfMetrics, SDPerfMetrics, SDPerModelsPerfMetrics
from prompts import PROMPTS
from settings import F32

import ovspec

Make = Callable[..., ovspec.LLMPipeline]
PROMPT = PROMPTS[0]
TWELVE = {"max_new_tokens": 12}
#: GenAI's streamer has a thread of its own, which may come late: an answer must not end before it stops it.
LONG = {"max_new_tokens": 1000, "ignore_eos": True}


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (StreamingStatus.STOP, GenerationFinishReason.STOP),
        (True, GenerationFinishReason.STOP),
        (StreamingStatus.CANCEL, GenerationFinishReason.NONE),
        (StreamingStatus.TOOL_CALL_STOP, GenerationFinishReason.TOOL_CALL),
    ],
)
def test_why_a_streamer_ended_an_answer(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, draft: bool, status: Any, reason: Any
) -> None:
    for pipeline in (make_pipeline(draft=draft), genai):
        pieces: list[str] = []

        def third(piece: str, pieces: list[str] = pieces) -> Any:
            pieces.append(piece)
            return status if len(pieces) == 3 else StreamingStatus.RUNNING

        results = pipeline.generate([PROMPT], streamer=third, **LONG)
        assert results.finish_reasons == [reason], pipeline
        assert results.perf_metrics.get_num_generated_tokens() < LONG["max_new_tokens"]


class StopsAtCalls(openvino_genai.IncrementalParser):
    """Ends the answer at its fourth piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 0

    def parse(self, message: dict[str, str], text: str, tokens: list[int] | None = None) -> str:
        self.pieces += 1
        if self.pieces == 4:
            self.set_status(StreamingStatus.TOOL_CALL_STOP)
        return text

    def reset(self) -> None:
        self.pieces = 0
        self.set_status(StreamingStatus.RUNNING)


class Parsed(openvino_genai.TextParserStreamer):
    def write(self, message: dict[str, str]) -> StreamingStatus:
        return StreamingStatus.RUNNING


def test_a_parser_of_a_streamer_ends_an_answer(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline
) -> None:
    def ended(pipeline: Any) -> Any:
        parser = StopsAtCalls()
        streamer = Parsed(pipeline.get_tokenizer(), [parser])
        results = pipeline.generate([PROMPT], streamer=streamer, **LONG)
        return results.finish_reasons, results.parsed[0]["content"]

    mine, theirs = ended(make_pipeline()), ended(genai)
    assert mine == theirs and mine[0] == [GenerationFinishReason.TOOL_CALL]


class Capitals(openvino_genai.Parser):
    def parse(self, message: dict[str, Any]) -> None:
        message["content"] = message["content"].upper()


class Counted(openvino_genai.Parser):
    def parse(self, message: dict[str, Any]) -> None:
        message["words"] = len(message["content"].split())
        message["capitals"] = message["content"].isupper()


INPUTS: dict[str, Any] = {
    "texts": [PROMPT, PROMPTS[1]],
    "history": ChatHistory([{"role": "user", "content": PROMPT}]),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_parsers_take_whole_texts_in_their_order(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, name: str, streams: bool
) -> None:
    parsers = [Capitals(), Counted()]
    config = GenerationConfig(parsers=parsers, **TWELVE)
    inputs = INPUTS[name][:1] if streams and name == "texts" else INPUTS[name]
    template = "{{ messages[0]['content'] }}"

    def parsed(pipeline: Any) -> Any:
        pipeline.get_tokenizer().set_chat_template(template)
        try:
            results = pipeline.generate(inputs, config, streamer=(lambda piece: None) if streams else None)
        finally:
            pipeline.get_tokenizer().set_chat_template("")
        return results.parsed, results.texts

    mine, theirs = parsed(make_pipeline()), parsed(genai)
    assert mine == theirs
    messages, texts = mine
    assert [message["content"] for message in messages] == [text.upper() for text in texts]
    assert all(message["capitals"] and message["words"] > 1 for message in messages)


def test_parsers_of_the_pipeline_are_kept(make_pipeline: Make, demo_ir: Path) -> None:
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", **F32)
    pipeline.set_generation_config(ovspec.GenerationConfig(parsers=[Capitals()], **TWELVE))
    results = pipeline.generate([PROMPT])
    assert results.parsed == [{"content": results.texts[0].upper()}]
    assert isinstance(pipeline.generate(PROMPT), str)


def test_parsers_that_can_not_be_are_refused(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    with pytest.raises(TypeError, match="parsers: expected objects of openvino_genai"):
        pipeline.generate([PROMPT], parsers=["upper"])
    tokens = pipeline.get_tokenizer().encode(PROMPT)
    with pytest.raises(ValueError, match="parsers: they take text"):
        pipeline.generate(tokens, parsers=[Capitals()], **TWELVE)


def eos_of(pipeline: Any) -> tuple[int, set[int]]:
    config = pipeline.get_generation_config()
    return config.eos_token_id, set(config.stop_token_ids)


@pytest.mark.parametrize("where", ["tokenizer", "generation_config.json"])
def test_a_configuration_says_where_answers_end(demo_ir: Path, tmp_path: Path, where: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_ir, folder, ignore=shutil.ignore_patterns("draft", "eagle3"))
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        content.pop("eos_token_id", None)
        if name == where:
            content["eos_token_id"] = 15
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    mine = ovspec.LLMPipeline(folder, "CPU", drafter="none", **F32)
    theirs = openvino_genai.LLMPipeline(folder, "CPU", **F32)
    assert eos_of(mine) == eos_of(theirs)
    for config in (GenerationConfig(do_sample=True), GenerationConfig(stop_token_ids={21})):
        mine.set_generation_config(config)
        theirs.set_generation_config(config)
        assert eos_of(mine) == eos_of(theirs)
    # What was asked for is what is used.
    found = mine.generate([PROMPT], mine.get_generation_config(), max_new_tokens=30)
    assert found.texts == mine.generate([PROMPT], max_new_tokens=30).texts


def getters(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("get_")]


def test_every_figure_of_each_model_is_there(make_pipeline: Make, demo_ir: Path) -> None:
    draft = openvino_genai.draft_model(demo_ir / "draft", "CPU", **F32)
    genai = openvino_genai.LLMPipeline(demo_ir, "CPU", draft_model=draft, **F32)
    ours, theirs = (
        pipeline.generate([PROMPT], num_assistant_tokens=3, ignore_eos=True, **TWELVE).extended_perf_metrics
        for pipeline in (make_pipeline(draft=True), genai)
    )
    assert all(callable(getattr(ours, name)) for name in getters(SDPerModelsPerfMetrics))
    assert ours.get_num_draft_processed_tokens() >= ours.get_num_draft_tokens() > 0
    assert ours.get_draft_processed_to_candidate_ratio() >= 1.0
    assert ours.get_latency().mean > 0 and ours.get_ttst().mean > 0
    for model in ("main_model_metrics", "draft_model_metrics"):
        mine, other = getattr(ours, model), getattr(theirs, model)
        for name in getters(SDPerfMetrics):
            here, there = getattr(mine, name)(), getattr(other, name)()
            if name == "get_ipot":  # there 0 milliseconds
                assert here.mean > 0
            elif hasattr(there, "mean"):
                assert (here.mean > 0) == (there.mean > 0), (model, name)
            else:
                assert (here > 0) == (there > 0), (model, name)
        assert mine.get_ttst().std == mine.get_generate_duration().std == 0
        for name in [name for name in dir(RawPerfMetrics) if not name.startswith("_")]:
            assert isinstance(getattr(mine.raw_metrics, name), list), (model, name)
        raw = mine.raw_metrics
        assert 1 < len(raw.m_durations) <= 12 and len(raw.m_times_to_first_token) == 1
        assert sum(raw.m_durations) == pytest.approx(1e3 * mine.get_inference_duration().mean)


def test_what_a_grammar_takes_is_measured(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    regex = openvino_genai.StructuredOutputConfig(regex="(yes|no), [0-9]{3}")
    one, two = (
        pipeline.generate([PROMPT], structured_output_config=regex, **TWELVE).perf_metrics for _ in range(2)
    )
    assert one.get_grammar_compiler_init_times()["llguidance"] > 0
    assert [len(metrics.raw_metrics.grammar_compile_times) for metrics in (one, two, one + two)] == [1, 1, 2]
    summary = (one + two).get_grammar_compile_time()
    assert 0 < summary.min <= summary.mean <= summary.max and summary.std >= 0
    assert summary.as_tuple() == tuple(summary)
    without = pipeline.generate([PROMPT], **TWELVE).perf_metrics
    assert without.get_grammar_compile_time().mean == -1 and not without.get_grammar_compiler_init_times()


def scheduled(demo_ir: Path, **fields: Any) -> ovspec.LLMPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in fields.items():
        setattr(scheduler, name, value)
    return ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", scheduler_config=scheduler, **F32)


def test_prompts_are_read_whole_without_split_fuse(demo_ir: Path) -> None:
    prompts = [PROMPT, PROMPTS[1], " ".join([PROMPT] * 20)]
    texts, reads = [], []
    for splits, rows in ((True, 16), (False, sys.maxsize), (False, 400)):
        pipeline = scheduled(demo_ir, dynamic_split_fuse=splits, max_num_batched_tokens=rows)
        seen: list[int] = []
        found = pipeline.generate(
            prompts, prompt_progress=lambda read, all_, seen=seen: seen.append(read), **TWELVE
        )
        texts.append(found.texts)
        reads.append(seen)
    assert texts[0] == texts[1] == texts[2]
    tokenizer = pipeline.get_tokenizer()
    lengths = [tokenizer.encode(prompt).input_ids.shape[1] for prompt in prompts]
    ends = {sum(lengths[:count]) for count in range(len(lengths) + 1)}
    assert not set(reads[0]) <= ends and set(reads[1]) | set(reads[2]) <= ends
    with pytest.raises(RuntimeError, match="one pass reads it whole: raise max_num_batched_tokens"):
        scheduled(demo_ir, dynamic_split_fuse=False, max_num_batched_tokens=16).generate(prompts[2], **TWELVE)


def rows(tokens: list[int]) -> ov.Tensor:
    return ov.Tensor(np.array([tokens], np.int64))


def test_a_chat_in_tokens_keeps_its_turns(make_pipeline: Make, demo_ir: Path) -> None:
    stateful = openvino_genai.LLMPipeline(demo_ir, "CPU", ATTENTION_BACKEND="SDPA", **F32)
    ours = make_pipeline(draft=True)
    asked = [ours.get_tokenizer().encode(prompt).input_ids.data[0].tolist() for prompt in PROMPTS[:3]]
    answers: dict[Any, list[list[int]]] = {stateful: [], ours: []}
    for pipeline, found in answers.items():
        pipeline.start_chat()
        for turn in asked:
            found.append(pipeline.generate(rows(turn), ignore_eos=True, **TWELVE).tokens[0])
        pipeline.finish_chat()
    assert answers[ours] == answers[stateful]
    history = [token for pair in zip(asked, answers[ours], strict=True) for turn in pair for token in turn]
    alone = ours.generate(rows(history[:-12]), ignore_eos=True, **TWELVE).tokens[0]
    assert alone == answers[ours][-1] != ours.generate(rows(asked[-1]), ignore_eos=True, **TWELVE).tokens[0]


def test_a_chat_in_tokens_forgets_what_was_cancelled(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    tokens = pipeline.get_tokenizer().encode(PROMPT)
    pipeline.start_chat()
    try:
        first = pipeline.generate(tokens, streamer=lambda piece: StreamingStatus.CANCEL, **TWELVE)
        again = pipeline.generate(tokens, **TWELVE)
        with pytest.raises(ValueError, match="goes on in tokens"):
            pipeline.generate(PROMPT, **TWELVE)
        with pytest.raises(ValueError, match="takes one prompt at a time"):
            pipeline.generate(ov.Tensor(np.ones((2, 3), np.int64)), **TWELVE)
        with pytest.raises(ValueError, match="a chat takes one answer"):
            pipeline.generate(tokens, do_sample=True, num_return_sequences=2, **TWELVE)
    finally:
        pipeline.finish_chat()
    assert first.finish_reasons == [GenerationFinishReason.NONE]
    assert again.tokens == pipeline.generate(tokens, **TWELVE).tokens


def test_objects_have_the_properties_that_a_schema_names(make_pipeline: Make) -> None:
    of = openvino_genai.StructuredOutputConfig
    inner = {"type": "object", "properties": {"b": {"type": "boolean"}}}
    schema = json.dumps({"type": "object", "properties": {"a": inner}, "required": ["a"]})
    for config in (of(json_schema=schema), of(compound_grammar=of.JSONSchema(schema))):
        for seed in range(5):
            options = {"do_sample": True, "temperature": 2.0, "rng_seed": seed, "max_new_tokens": 60}
            (text,) = make_pipeline().generate([PROMPT], structured_output_config=config, **options).texts
            assert set(json.loads(text)) == {"a"} and set(json.loads(text)["a"]) <= {"b"}


def test_parameters_in_xml_follow_the_pattern_of_their_schema(make_pipeline: Make) -> None:
    of = openvino_genai.StructuredOutputConfig
    schema = {
        "properties": {"word": {"type": "string", "pattern": "^[A-Z][a-z]{1,5}$"}},
        "required": ["word"],
    }
    config = of(compound_grammar=of.QwenXMLParametersFormat(json.dumps({"type": "object", **schema})))
    for seed in range(5):
        options = {"do_sample": True, "temperature": 2.0, "rng_seed": seed, "max_new_tokens": 60}
        (text,) = make_pipeline().generate([PROMPT], structured_output_config=config, **options).texts
        assert re.fullmatch("[ \n]*<parameter=word>[A-Z][a-z]{1,5}</parameter>[ \n]*", text), text


def test_an_answer_can_be_sent_to_another_process(make_pipeline: Make) -> None:
    results = make_pipeline().generate([PROMPT], **TWELVE)
    received = pickle.loads(pickle.dumps(results))
    assert (received.texts, received.scores) == (results.texts, results.scores)
    assert received.finish_reasons == results.finish_reasons
    assert received.perf_metrics.get_num_generated_tokens() == 12
