"""The pipeline's surface: inputs, outputs, streaming, chats, metrics, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai import ChatHistory, GenerationConfig, StreamerBase, StreamingStatus
from prompts import PROMPTS, STORY
from settings import F32

import ovspec
from ovspec.cache import KVCache

Make = Callable[..., ovspec.LLMPipeline]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def genai(demo_ir: Path) -> openvino_genai.LLMPipeline:
    return openvino_genai.LLMPipeline(demo_ir, "CPU", **F32)


def test_same_text_as_openvino_genai(make_pipeline: Make, genai: openvino_genai.LLMPipeline) -> None:
    for prompt in PROMPTS[:10]:
        assert make_pipeline(draft=True).generate(prompt, max_new_tokens=30) == genai.generate(
            prompt, max_new_tokens=30
        )


def test_forms_of_input_and_output(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    text = pipeline.generate(PROMPTS[0], max_new_tokens=12)
    assert isinstance(text, str)
    decoded = pipeline.generate([PROMPTS[0], PROMPTS[1]], max_new_tokens=12)
    assert decoded.texts[0] == text and len(decoded.texts) == len(decoded.scores) == 2
    ids = pipeline.get_tokenizer().encode([PROMPTS[0], PROMPTS[1]])
    encoded = pipeline.generate(ids, max_new_tokens=12)
    assert [len(tokens) for tokens in encoded.tokens] == [12, 12]
    assert pipeline.get_tokenizer().decode(encoded.tokens) == decoded.texts
    row = ov.Tensor(np.array(pipeline.get_tokenizer().encode(PROMPTS[0]).input_ids.data))
    assert pipeline.generate(row, max_new_tokens=12).tokens[0] == encoded.tokens[0]


def test_configuration_object_and_keywords(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    config = GenerationConfig()
    config.max_new_tokens = 5
    tokens = pipeline.generate(pipeline.get_tokenizer().encode(PROMPTS[0]), config).tokens[0]
    assert len(tokens) == 5
    longer = pipeline.generate(pipeline.get_tokenizer().encode(PROMPTS[0]), config, max_new_tokens=7).tokens[
        0
    ]
    assert len(longer) == 7 and longer[:5] == tokens
    assert config.max_new_tokens == 5


def test_seed_reproduces_and_differs(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    options: dict[str, Any] = {"max_new_tokens": 30, "do_sample": True, "temperature": 1.2, "top_p": 0.95}
    first = pipeline.generate(PROMPTS[0], rng_seed=7, **options)
    assert first == pipeline.generate(PROMPTS[0], rng_seed=7, **options)
    assert first != pipeline.generate(PROMPTS[0], rng_seed=8, **options)
    several = pipeline.generate([PROMPTS[0]], rng_seed=7, num_return_sequences=3, **options).texts
    assert several[0] == first and len(set(several)) == 3


@pytest.mark.parametrize("stop_strings", [set(), {"never said"}])
def test_streamed_text_is_the_text(make_pipeline: Make, stop_strings: set[str]) -> None:
    for prompt in PROMPTS[:5]:
        pieces: list[str] = []
        text = make_pipeline(draft=True).generate(
            prompt, max_new_tokens=40, streamer=pieces.append, stop_strings=stop_strings
        )
        assert "".join(pieces) == text and len(pieces) > 3


def test_base_streamer_gets_tokens(make_pipeline: Make) -> None:
    class Recorder(StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.tokens: list[int] = []
            self.ended = 0

        def write(self, token: int | list[int]) -> StreamingStatus:
            self.tokens += token if isinstance(token, list) else [token]
            return StreamingStatus.RUNNING

        def end(self) -> None:
            self.ended += 1

    pipeline, recorder = make_pipeline(draft=True), Recorder()
    tokens = pipeline.generate(
        pipeline.get_tokenizer().encode(PROMPTS[0]), streamer=recorder, max_new_tokens=20
    ).tokens
    assert recorder.tokens == tokens[0] and recorder.ended == 1


@pytest.mark.parametrize("answer", [True, StreamingStatus.STOP, StreamingStatus.CANCEL])
def test_streamer_stops(make_pipeline: Make, answer: object) -> None:
    pipeline, pieces = make_pipeline(draft=True), []

    def streamer(piece: str) -> object:
        pieces.append(piece)
        return answer if len(pieces) == 3 else None

    text = pipeline.generate(PROMPTS[0], max_new_tokens=40, streamer=streamer)
    assert text == "".join(pieces)
    assert len(pipeline.generate(PROMPTS[0], max_new_tokens=40)) > len(text)


def test_exception_in_streamer_leaves_the_pipeline_usable(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    want = pipeline.generate(PROMPTS[0], max_new_tokens=20)

    def fail(piece: str) -> None:
        raise KeyboardInterrupt

    before = pipeline._target.blocks.num_blocks
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            pipeline.generate(PROMPTS[0], max_new_tokens=20, streamer=fail)
    assert pipeline.generate(PROMPTS[0], max_new_tokens=20) == want
    assert pipeline._target.blocks.num_blocks == before


@pytest.mark.parametrize("include", [False, True], ids=["excluded", "included"])
def test_stop_string_cuts_text_and_stream(make_pipeline: Make, include: bool) -> None:
    pipeline = make_pipeline(draft=True)
    whole = pipeline.generate(PROMPTS[0], max_new_tokens=40)
    stop = whole[20:26]
    cut = whole.index(stop) + len(stop) * include
    pieces: list[str] = []
    results = pipeline.generate(
        [PROMPTS[0]],
        max_new_tokens=40,
        stop_strings={stop},
        include_stop_str_in_output=include,
        streamer=pieces.append,
    )
    assert results.texts[0] == "".join(pieces) == whole[:cut]
    assert results.finish_reasons[0] == openvino_genai.GenerationFinishReason.STOP
    assert results.perf_metrics.get_num_generated_tokens() < 40


def test_stop_token_ends_in_the_middle_of_an_accepted_draft(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    ids = pipeline.get_tokenizer().encode(PROMPTS[0])
    tokens = pipeline.generate(ids, max_new_tokens=40).tokens[0]
    for at in range(3, 20):
        stop = tokens[at]
        got = pipeline.generate(ids, max_new_tokens=40, stop_token_ids={stop}).tokens[0]
        assert got == tokens[: tokens.index(stop) + 1]


def test_min_new_tokens_holds_the_end_back(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    ids = pipeline.get_tokenizer().encode(PROMPTS[0])
    stop = pipeline.generate(ids, max_new_tokens=10).tokens[0][2]
    got = pipeline.generate(ids, max_new_tokens=20, min_new_tokens=8, stop_token_ids={stop}).tokens[0]
    assert len(got) > 8 and stop not in got[:8]


def test_generation_ends_at_the_last_position(demo_ir: Path, make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    ids = np.random.default_rng(0).integers(2, 4096, (1, 8185))
    results = pipeline.generate(ov.Tensor(ids), max_new_tokens=100, ignore_eos=True)
    assert len(results.tokens[0]) == 7
    assert results.finish_reasons[0] == openvino_genai.GenerationFinishReason.LENGTH
    with pytest.raises(ValueError, match="the prompt has 8192 tokens, the model 8192 positions"):
        pipeline.generate(ov.Tensor(np.ones((1, 8192), np.int64)), max_new_tokens=1)


class TestChat:
    @pytest.fixture
    def pipeline(self, demo_ir: Path) -> ovspec.LLMPipeline:
        pipeline = ovspec.LLMPipeline(
            demo_ir, "CPU", draft_model=ovspec.draft_model(demo_ir / "draft"), **F32
        )
        pipeline.get_tokenizer().set_chat_template(TEMPLATE)
        return pipeline

    def test_turns_prefill_only_what_is_new(self, pipeline: ovspec.LLMPipeline) -> None:
        prefilled: list[int] = []
        forward = pipeline._target.forward

        def counting(batch: Any) -> Any:
            prefilled.extend(len(rows.tokens) for rows in batch)
            return forward(batch)

        pipeline.start_chat("You tell stories.")
        first = pipeline.generate(STORY, max_new_tokens=16)
        pipeline._target.forward = counting  # type: ignore[method-assign]
        second = pipeline.generate("Go on.", max_new_tokens=16)
        assert prefilled[0] < 40
        pipeline._target.forward = forward  # type: ignore[method-assign]
        pipeline.finish_chat()
        history = ChatHistory([{"role": "system", "content": "You tell stories."}])
        history.append({"role": "user", "content": STORY})
        history.append({"role": "assistant", "content": first})
        history.append({"role": "user", "content": "Go on."})
        assert str(pipeline.generate(history, max_new_tokens=16)) == second

    def test_history_that_changes_is_recomputed(self, pipeline: ovspec.LLMPipeline) -> None:
        histories = [
            ChatHistory([{"role": "user", "content": text}]) for text in (STORY, STORY[:900] + " End.", "Hi")
        ]
        fresh = []
        for history in histories:
            pipeline.finish_chat()
            fresh.append(str(pipeline.generate(history, max_new_tokens=12)))
        pipeline.finish_chat()
        assert [str(pipeline.generate(history, max_new_tokens=12)) for history in histories] == fresh

    def test_cancelled_turn_is_forgotten(self, pipeline: ovspec.LLMPipeline) -> None:
        pipeline.start_chat()
        pipeline.generate("Tell me about Lily.", max_new_tokens=8)
        pipeline.generate("No.", max_new_tokens=8, streamer=lambda _: StreamingStatus.CANCEL)
        got = pipeline.generate("And Tom?", max_new_tokens=8)
        messages = [m["content"] for m in pipeline._chat.history.get_messages()]
        assert len(messages) == 4 and "No." not in messages and messages[-1] == got

    def test_no_template_is_an_error(self, make_pipeline: Make) -> None:
        with pytest.raises(ValueError, match="no chat template"):
            make_pipeline().generate(ChatHistory([{"role": "user", "content": "Hi"}]), max_new_tokens=2)


def test_metrics_are_of_one_call(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    for _ in range(2):
        metrics = pipeline.generate([PROMPTS[0]], max_new_tokens=30, num_assistant_tokens=4).perf_metrics
        raw = metrics.raw_metrics
        assert metrics.get_num_generated_tokens() == 30
        # The first token comes from the prefill, the others from drafts and their bonus tokens.
        assert sum(raw.accepted) + raw.num_drafts + (len(raw.verify_durations) - raw.num_drafts) >= 29
        assert metrics.get_mean_acceptance_length() == pytest.approx(1 + sum(raw.accepted) / raw.num_drafts)
        assert len(metrics.get_acceptance_rate_per_position()) == 4
        assert metrics.get_acceptance_rate_per_position()[0] >= metrics.get_acceptance_rate_per_position()[3]
        assert metrics.get_ttft().mean > 0 and metrics.get_tpot().mean > 0 and metrics.get_load_time() > 0
        assert metrics.get_attention_density() == 1.0
        assert len(raw.host_durations) == len(raw.verify_durations)


BAD_OPTIONS = {
    "unknown": ({"max_tokens": 3}, "max_tokens=3: generate knows no such option"),
    "beams": ({"num_beams": 2}, "num_beams=2 is not supported"),
    "echo": ({"echo": True}, "echo=True is not supported"),
    "logprobs": ({"logprobs": 1}, "logprobs=1 is not supported"),
    "prompt lookup": ({"max_ngram_size": 3}, "max_ngram_size=3 is not supported"),
    "both": (
        {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.3},
        "num_assistant_tokens=3 and assistant_confidence_threshold=0.3 are mutually exclusive",
    ),
    "too many drafts": ({"num_assistant_tokens": 64}, "num_assistant_tokens=64: expected at most 63"),
    "temperature": ({"do_sample": True, "temperature": -1.0}, "temperature"),
    "no tokens": ({"max_new_tokens": 0}, "max_new_tokens"),
    "max length": ({"max_new_tokens": 2**64 - 1, "max_length": 1}, "max_length=1: the prompt alone has"),
    "threshold": ({"assistant_confidence_threshold": -0.5}, "assistant_confidence_threshold=-0.5"),
    "stop token": ({"stop_token_ids": {4096}}, "stop_token_ids: 4096 is no token of this model"),
    "wrong type": ({"top_p": "high"}, "top_p='high'"),
    "empty stop string": ({"stop_strings": {""}}, "stop_strings"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_option_is_one_line_and_names_itself(make_pipeline: Make, name: str) -> None:
    options, message = BAD_OPTIONS[name]
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as caught:
        make_pipeline(draft=True).generate("Once", **{"max_new_tokens": 4, **options})
    assert "\n" not in str(caught.value)


def test_assistant_options_need_a_draft_model(make_pipeline: Make) -> None:
    with pytest.raises(ValueError, match=r"num_assistant_tokens=3: this pipeline has no draft model"):
        make_pipeline().generate("Once", max_new_tokens=4, num_assistant_tokens=3)


def test_streamer_needs_one_sequence(make_pipeline: Make) -> None:
    with pytest.raises(ValueError, match="2 sequences can't share one"):
        make_pipeline().generate(PROMPTS[:2], max_new_tokens=2, streamer=print)
    with pytest.raises(ValueError, match="streamer=int"):
        make_pipeline().generate("Once", max_new_tokens=2, streamer=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (5, "inputs: expected text, texts"),
        ([5], "inputs: expected text, got int"),
        ([], "at least one prompt"),
        ("abc\udcff", "is no valid text"),
        (ov.Tensor(np.array([1, 2])), r"shape \[prompts, tokens\], got \[2\]"),
        (ov.Tensor(np.array([[1, 4096]])), "token ids must be 0 to 4095"),
    ],
    ids=["number", "numbers", "nothing", "surrogate", "one dimension", "no token"],
)
def test_bad_inputs(make_pipeline: Make, inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_pipeline().generate(inputs, max_new_tokens=2)


def test_configuration_must_be_one(make_pipeline: Make) -> None:
    with pytest.raises(ValueError, match="generation_config: expected an openvino_genai"):
        make_pipeline().generate("Once", {"max_new_tokens": 3})  # type: ignore[call-overload]


def test_one_assistant_option_replaces_the_default_of_the_other(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    before, config = pipeline.get_generation_config(), pipeline.get_generation_config()
    config.num_assistant_tokens = 3
    try:
        pipeline.set_generation_config(config)
        metrics = pipeline.generate([PROMPTS[0]], max_new_tokens=12).perf_metrics
        assert len(metrics.get_acceptance_rate_per_position()) == 3
        pipeline.generate([PROMPTS[0]], max_new_tokens=12, assistant_confidence_threshold=0.3)
    finally:
        pipeline.set_generation_config(before)


def folder_with(demo_ir: Path, place: Path, **defaults: object) -> Path:
    """A copy of the demo pair whose generation_config.json says more."""
    shutil.copytree(demo_ir, place / "model")
    path = place / "model" / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | defaults
    path.write_text(json.dumps(config), encoding="utf-8")
    return place / "model"


def test_folder_defaults_for_drafting_mean_nothing_without_a_draft(demo_ir: Path, tmp_path: Path) -> None:
    pipeline = ovspec.LLMPipeline(folder_with(demo_ir, tmp_path, num_assistant_tokens=7), "CPU")
    assert pipeline.generate("Once", max_new_tokens=4)


def test_folder_that_asks_for_the_unsupported_is_named(demo_ir: Path, tmp_path: Path) -> None:
    folder = folder_with(demo_ir, tmp_path, num_beams=4)
    with pytest.raises(ValueError, match=r"generation_config.json: num_beams=4 is not supported"):
        ovspec.LLMPipeline(folder, "CPU")


def test_a_draft_of_few_positions_does_not_limit_the_target(demo_ir: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(demo_ir / "draft", draft)
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 24}), encoding="utf-8")
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", draft_model=ovspec.draft_model(draft), **F32)
    plain = ovspec.LLMPipeline(demo_ir, "CPU", attention="stock", **F32)
    results = pipeline.generate([PROMPTS[0]], max_new_tokens=40)
    assert results.texts[0] == plain.generate(PROMPTS[0], max_new_tokens=40)
    assert 0 < results.perf_metrics.raw_metrics.num_drafts < 10
    assert pipeline.generate(STORY, max_new_tokens=8) == plain.generate(STORY, max_new_tokens=8)


def test_out_of_memory_leaves_the_pipeline_usable(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", draft_model=ovspec.draft_model(demo_ir / "draft"), **F32)
    want = pipeline.generate(PROMPTS[0], max_new_tokens=12)
    long_prompt = ov.Tensor(np.random.default_rng(0).integers(2, 4096, (1, 3000)))
    allocate, calls = KVCache._allocate, 0

    def failing(self: KVCache, *arguments: Any) -> ov.Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("the KV cache can't grow")
        return allocate(self, *arguments)

    monkeypatch.setattr(KVCache, "_allocate", failing)
    with pytest.raises(RuntimeError, match="can't grow"):
        pipeline.generate(long_prompt, max_new_tokens=2)
    assert pipeline.generate(PROMPTS[0], max_new_tokens=12) == want
    assert len(pipeline.generate(long_prompt, max_new_tokens=2).tokens[0]) == 2
    assert pipeline.generate(PROMPTS[0], max_new_tokens=12) == want


def test_streamer_is_told_of_the_end_after_an_error(make_pipeline: Make) -> None:
    class Failing(StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.ended = 0

        def write(self, token: int | list[int]) -> StreamingStatus:
            raise RuntimeError("streamer broke")

        def end(self) -> None:
            self.ended += 1

    streamer = Failing()
    with pytest.raises(RuntimeError, match="streamer broke"):
        make_pipeline(draft=True).generate("Once", max_new_tokens=4, streamer=streamer)
    assert streamer.ended == 1


def test_metrics_add_up(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    one = pipeline.generate([PROMPTS[0]], max_new_tokens=12, num_assistant_tokens=2).perf_metrics
    two = pipeline.generate([PROMPTS[1]], max_new_tokens=20, num_assistant_tokens=4).perf_metrics
    total = one + two
    assert total.get_num_generated_tokens() == 32
    assert total.raw_metrics.num_drafts == one.raw_metrics.num_drafts + two.raw_metrics.num_drafts
    assert len(total.raw_metrics.proposed) == 4
    assert sum(total.raw_metrics.accepted) == sum(one.raw_metrics.accepted) + sum(two.raw_metrics.accepted)
    assert total.get_ttft().mean == pytest.approx((one.get_ttft().mean + two.get_ttft().mean) / 2)


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "verify": ({"verify": "sparse"}, "verify='sparse': expected 'dense' or ovspec.SparseVerify"),
    "attention": ({"attention": "magic"}, "attention='magic': expected 'native' or 'stock'"),
    "stock and sparse": ({"attention": "stock", "verify": ovspec.SparseVerify()}, "verifies densely only"),
    "precision": (
        {"KV_CACHE_PRECISION": "u4"},
        "KV_CACHE_PRECISION=u4 is not supported: expected one of f32",
    ),
    "property": ({"FOO": 1}, "property 'FOO' is unknown to device CPU"),
    "device": ({"device": "NPU"}, "device='NPU'"),
    "value": ({"INFERENCE_NUM_THREADS": "many"}, "INFERENCE_NUM_THREADS"),
    "anchors": ({"verify": ovspec.SparseVerify(anchor_layers=(1, 2))}, r"anchor_layers=\[1, 2\]"),
    "bf16 cache": ({**F32, "KV_CACHE_PRECISION": "bf16"}, "KV_CACHE_PRECISION=bf16"),
    "chunk": ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0"),
    "draft path": ({"draft_model": "draft"}, "draft_model: expected what ovspec.draft_model"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_setting_is_one_line(demo_ir: Path, name: str) -> None:
    settings, message = BAD_SETTINGS[name]
    with pytest.raises(ValueError, match=message) as caught:
        ovspec.LLMPipeline(demo_ir, **settings)
    assert "\n" not in str(caught.value)


def test_bad_folders(tmp_path: Path, demo_ir: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        ovspec.LLMPipeline(tmp_path / "nowhere", "CPU")
    with pytest.raises(ValueError, match="no OpenVINO model folder"):
        ovspec.LLMPipeline(tmp_path, "CPU")
    with pytest.raises(ValueError, match="does not exist"):
        ovspec.LLMPipeline(demo_ir, "CPU", draft_model=ovspec.draft_model(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"L0": -1}, "L0=-1"),
        ({"rho": 1.5}, "rho=1.5"),
        ({"budget": 0}, "budget=0"),
        ({"budget": 5, "rho": 0.1}, "budget=5 contradicts"),
        ({"L0": "5"}, "L0='5': expected a number"),
        ({"anchor_layers": (0, "a")}, "anchor_layers"),
    ],
)
def test_bad_sparse_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ovspec.SparseVerify(**arguments)


@pytest.mark.parametrize(
    ("verify", "context", "blocks"),
    [
        (ovspec.SparseVerify(L0=1024, rho=0.1), 1024, -1),
        (ovspec.SparseVerify(L0=1024, rho=0.1), 2048, 36),
        (ovspec.SparseVerify(L0=0, rho=0.5), 100, 2),
        (ovspec.SparseVerify(L0=0, rho=0.0), 100, 1),
        (ovspec.SparseVerify(budget=2048), 16384, 64),
        (ovspec.SparseVerify(budget=2048), 2048, -1),
        (ovspec.SparseVerify(budget=1), 2048, 1),
    ],
)
def test_budget(verify: ovspec.SparseVerify, context: int, blocks: int) -> None:
    assert verify.budget_blocks(context, block_size=32) == blocks
