"""What the pipeline refuses: one line that names the value, whatever the input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino_genai import StreamerBase, StreamingStatus, TokenizedInputs
from prompts import PROMPTS, STORY
from settings import F32

import ovspec
from ovspec.cache.cache import KVCache
from ovspec.errors import InvalidTypeError, InvalidValueError

Make = Callable[..., ovspec.LLMPipeline]


def folder_with(demo_ir: Path, place: Path, **defaults: object) -> Path:
    """A copy of the demo pair with more fields in generation_config.json."""
    shutil.copytree(demo_ir, place / "model")
    path = place / "model" / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | defaults
    path.write_text(json.dumps(config), encoding="utf-8")
    return place / "model"


def masked(shape: tuple[int, ...]) -> TokenizedInputs:
    """Three tokens, and a mask of another shape."""
    return TokenizedInputs(ov.Tensor(np.ones((1, 3), np.int64)), ov.Tensor(np.ones(shape, np.int64)))


BAD_OPTIONS = {
    "unknown": ({"max_tokens": 3}, "max_tokens=3: generate has no such option"),
    "pictures": ({"images": [np.zeros((60, 60, 3), np.uint8)]}, "option; ovspec.VLMPipeline reads pictures"),
    "an array": ({"temperature": np.zeros((60, 60))}, "expected a number"),
    "echo": ({"echo": "yes"}, "echo='yes': expected True or False"),
    "logprobs": ({"logprobs": -1}, "logprobs=-1: expected a whole number"),
    "prompt lookup": ({"max_ngram_size": 3}, "max_ngram_size=3: this pipeline looks no n-grams up"),
    "both": (
        {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.3},
        "num_assistant_tokens=3 and assistant_confidence_threshold=0.3 are mutually exclusive",
    ),
    "too many drafts": ({"num_assistant_tokens": 64}, "num_assistant_tokens=64: expected at most 63"),
    "temperature": ({"do_sample": True, "temperature": -1.0}, "temperature"),
    "no tokens": ({"max_new_tokens": 0}, "max_new_tokens"),
    "max length": ({"max_new_tokens": 2**64 - 1, "max_length": 1}, "max_length=1: the prompt alone has"),
    "threshold": ({"assistant_confidence_threshold": -0.5}, "assistant_confidence_threshold=-0.5"),
    "stop token that nothing stops at": (
        {"stop_token_ids": {4096}, "ignore_eos": True, "max_new_tokens": 4},
        "stop_token_ids: 4096 is no token of this model",
    ),
    "eos token": ({"eos_token_id": 5000}, "eos_token_id: 5000 is no token of this model"),
    "stop token": ({"stop_token_ids": {4096}}, "stop_token_ids: 4096 is no token of this model"),
    "wrong type": ({"top_p": "high"}, "top_p='high'"),
    "empty stop string": ({"stop_strings": {""}}, "stop_strings"),
}


@pytest.mark.parametrize("model", [5, None, ["model"]])
def test_a_model_that_is_no_path(demo_ir: Path, model: Any) -> None:
    for make in (
        lambda: ovspec.LLMPipeline(model),
        lambda: ovspec.VLMPipeline(model),
        lambda: ovspec.LLMPipeline(demo_ir, "CPU", draft_model=ovspec.draft_model(model)),
    ):
        with pytest.raises(InvalidTypeError, match=r"^models_path: expected the path of a folder or GGUF"):
            make()


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_option_is_one_line_and_names_itself(make_pipeline: Make, name: str) -> None:
    options, message = BAD_OPTIONS[name]
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as caught:
        make_pipeline(draft=True).generate("Once", **{"max_new_tokens": 4, **options})
    assert "\n" not in str(caught.value)


def test_assistant_options_need_a_draft_model(make_pipeline: Make) -> None:
    with pytest.raises(ValueError, match=r"num_assistant_tokens=3: this pipeline does not draft"):
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
        ([5], "inputs: expected text, got int; give token ids as openvino.Tensor"),
        ([[1, 4]], "got list; give token ids as openvino.Tensor"),
        (np.array([[1, 4]]), "got ndarray; give token ids as openvino.Tensor"),
        ([{"role": "user", "content": "Once"}], r"got dict; give messages as ovspec.ChatHistory\("),
        ([], "at least one prompt"),
        ("abc\udcff", "is no valid text"),
        (ov.Tensor(np.array([1, 2])), r"shape \[prompts, tokens\], got \[2\]"),
        (ov.Tensor(np.array([[1, 4096]])), "token ids must be 0 to 4095"),
        (ov.Tensor(np.array([[1.6, 2.2]])), "ids of type i64, got f64; cast"),
        (ov.Tensor(["abc"]), "ids of type i64, got string"),
        (masked((1, 2)), r"attention_mask has the shape \[1, 2\], input_ids \[1, 3\]; give"),
        (masked((2, 3)), r"attention_mask has the shape \[2, 3\]"),
    ],
    ids=[
        *("number", "numbers", "lists of numbers", "array", "messages", "nothing", "surrogate"),
        *("one dimension", "no token", "fractions", "strings", "short mask", "long mask"),
    ],
)
def test_bad_inputs(make_pipeline: Make, inputs: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_pipeline().generate(inputs, max_new_tokens=2)


def test_bad_messages_of_a_chat(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    for message in (5, "\ud800"):
        with pytest.raises(InvalidValueError, match=r"^system_message: (expected text|it is no valid text)"):
            pipeline.start_chat(message)  # type: ignore[arg-type]
    pipeline.start_chat()
    try:
        for inputs, words in (("\ud800", "it is no valid text"), ([5], "expected text, got int")):
            with pytest.raises(InvalidValueError, match=f"^inputs: {words}"):
                pipeline.generate(inputs, max_new_tokens=2)
    finally:
        pipeline.finish_chat()


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


def test_folder_defaults_for_drafting_mean_nothing_without_a_draft(demo_ir: Path, tmp_path: Path) -> None:
    pipeline = ovspec.LLMPipeline(folder_with(demo_ir, tmp_path, num_assistant_tokens=7), "CPU")
    assert pipeline.generate("Once", max_new_tokens=4)


def test_folder_that_asks_for_the_unsupported_is_named(demo_ir: Path, tmp_path: Path) -> None:
    folder = folder_with(demo_ir, tmp_path, length_penalty=2.0)
    with pytest.raises(ValueError, match=r"generation_config.json: length_penalty=2: it is for beams"):
        ovspec.LLMPipeline(folder, "CPU")


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"repetition_penalty": 0.0}, {"repetition_penalty": -1.0}),
        ({"do_sample": True, "temperature": 0.0}, {"temperature": -1.0}),
        ({"eos_token_id": [0, 99999]}, {"stop_token_ids": {88888}}),
        (
            {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5},
            {"num_assistant_tokens": 99, "assistant_confidence_threshold": 0.0},
        ),
    ],
)
def test_a_refusal_says_where_the_models_files_cause_it(
    demo_ir: Path, tmp_path: Path, fields: dict[str, Any], given: dict[str, Any]
) -> None:
    folder = folder_with(demo_ir, tmp_path, **fields)
    pipeline = ovspec.LLMPipeline(folder, "CPU", draft_model=ovspec.draft_model(folder / "draft"))
    source = "; this comes from the model's own generation_config.json or config.json"
    with pytest.raises(ValueError, match=f"{source}$"):
        pipeline.generate("Once", max_new_tokens=2)
    with pytest.raises(ValueError, match=f"^(?!.*{source})"):
        pipeline.generate("Once", max_new_tokens=2, **given)


def test_a_draft_of_few_positions_does_not_limit_the_target(demo_ir: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(demo_ir / "draft", draft)
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 24}), encoding="utf-8")
    pipeline = ovspec.LLMPipeline(
        demo_ir, "CPU", draft_model=ovspec.draft_model(draft), drafter="assistant", **F32
    )
    plain = ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", attention="stock", **F32)
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


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "verify": ({"verify": "sparser"}, "verify='sparser': expected 'dense', 'sparse' or ovspec.SparseVerify"),
    "attention": ({"attention": "magic"}, "attention='magic': expected 'native' or 'stock'"),
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
        ({"L0": "5"}, "L0='5': expected a whole number"),
        ({"budget": 2.5}, "budget=2.5: expected a whole number"),
        ({"coverage": 0.0}, "coverage=0.0: expected a share above 0"),
        ({"coverage": 1.1}, "coverage=1.1"),
        ({"coverage": "1"}, "coverage='1': expected a number"),
        ({"coverage": 0.5, "budget": 64}, "coverage=0.5 contradicts budget=64"),
        ({"coverage": 0.5, "L0": 64, "rho": 0.1}, "coverage=0.5 contradicts L0=64, rho=0.1"),
        ({"rule": "first"}, "rule='first': expected 'mass' or 'paper'"),
        ({"sink_blocks": 0}, "sink_blocks=0: expected a whole number of at least 1"),
        ({"local_blocks": 1.5}, "local_blocks=1.5: expected a whole number"),
        ({"anchor_layers": (0, "a")}, "anchor_layers"),
    ],
)
def test_bad_sparse_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ovspec.SparseVerify(**arguments)
