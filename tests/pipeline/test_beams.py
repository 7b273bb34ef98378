"""Beams of a pipeline: tokens and scores are those of OpenVINO GenAI, and of transformers, on the same IR."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai import ChatHistory, GenerationFinishReason, StopCriteria
from prompts import PROMPTS
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.eval.scoring import Scorer
from ovspec.generation.inputs import tokenized

Make = Callable[..., ovspec.LLMPipeline]

CASES: dict[str, dict[str, Any]] = {
    "two": {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 24},
    "three": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 60},
    "one of five": {"num_beams": 5, "max_new_tokens": 33},
    "one token": {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 1},
    "early": {
        "num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 60, "length_penalty": 2.0,
        "stop_criteria": StopCriteria.EARLY,
    },
    "never": {
        "num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 70, "length_penalty": 0.0,
        "stop_criteria": StopCriteria.NEVER,
    },
    "short ones": {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 60, "length_penalty": -1.0},
    "n-grams": {
        "num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 40, "no_repeat_ngram_size": 2,
        "stop_criteria": StopCriteria.NEVER,
    },
    "no token twice": {"num_beams": 2, "max_new_tokens": 40, "no_repeat_ngram_size": 1},
    "groups": {
        "num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "num_return_sequences": 5,
        "max_new_tokens": 60,
    },
    "groups of one": {
        "num_beams": 7, "num_beam_groups": 7, "diversity_penalty": 0.3, "num_return_sequences": 7,
        "max_new_tokens": 40, "stop_criteria": StopCriteria.EARLY,
    },
    "stop tokens": {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 60, "stop_token_ids": {15}},
    "max_length": {"num_beams": 3, "max_length": 40},
    "a stop string that stays": {
        "num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 30, "stop_strings": {" play"},
        "include_stop_str_in_output": True,
    },
    "echo": {"num_beams": 2, "max_new_tokens": 9, "echo": True},
}  # fmt: skip
FIRST = {"three", "early", "n-grams", "groups", "stop tokens", "a stop string that stays", "echo"}
INPUTS = (PROMPTS[0], PROMPTS[22], PROMPTS[4])


@pytest.mark.parametrize("name", by_tier(CASES, FIRST))
def test_tokens_and_scores_are_those_of_openvino_genai(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, name: str
) -> None:
    pipeline, encode = make_pipeline(), genai.get_tokenizer().encode
    for prompt in INPUTS:
        ours = pipeline.generate(encode(prompt), **CASES[name])
        theirs = genai.generate(encode(prompt), **CASES[name])
        assert ours.tokens == theirs.tokens
        assert ours.finish_reasons == theirs.finish_reasons
        # It sums the exponentials of a vocabulary in float32, one by one.
        assert ours.scores == pytest.approx(theirs.scores, rel=5e-4, abs=5e-4)
    assert not pipeline.engine.engine.kv_cache_usage


def test_several_prompts_at_once_have_the_texts_of_openvino_genai(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline
) -> None:
    prompts, options = [*INPUTS, PROMPTS[7]], CASES["groups"]
    ours, theirs = (one.generate(prompts, **options) for one in (make_pipeline(), genai))
    assert ours.texts == theirs.texts and len(ours.texts) == 20
    assert str(ours).count("\n") >= 19
    assert ours.perf_metrics.get_num_input_tokens() == sum(
        len(tokenized(genai.get_tokenizer(), prompt, special_tokens=True)) for prompt in prompts
    )
    assert ours.perf_metrics.get_ttft().mean > 0 and ours.perf_metrics.get_throughput().mean > 0


@pytest.fixture(scope="module")
def transformers_answer(demo_ir: Path) -> Callable[..., tuple[list[list[int]], list[float]]]:
    """The answers of transformers' own search over the same IR, without the padding behind them."""
    from optimum.intel import OVModelForCausalLM

    config = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "CACHE_DIR": ""}
    model = OVModelForCausalLM.from_pretrained(demo_ir, ov_config=config)

    def answer(prompt: list[int], **options: Any) -> tuple[list[list[int]], list[float]]:
        import torch

        ids = torch.tensor([prompt])
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=1, eos_token_id=0,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        rows = [row[len(prompt) :].tolist() for row in found.sequences]
        cut = [row[: row.index(0) + 1] if 0 in row else row for row in rows]
        return cut, found.sequences_scores.tolist()

    return answer


HF = {
    "three": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 60},
    "early": {
        "num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 60, "length_penalty": 0.5,
        "early_stopping": True,
    },
    "never": {"num_beams": 5, "num_return_sequences": 3, "max_new_tokens": 60, "early_stopping": "never"},
    "n-grams": {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 40, "no_repeat_ngram_size": 2},
    "least tokens": {
        "num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 60, "min_new_tokens": 57,
        "early_stopping": True,
    },
}  # fmt: skip
_CRITERIA = {True: StopCriteria.EARLY, False: StopCriteria.HEURISTIC, "never": StopCriteria.NEVER}


@pytest.mark.parametrize("name", HF)
def test_tokens_and_scores_are_those_of_transformers(
    make_pipeline: Make, transformers_answer: Callable[..., tuple[list[list[int]], list[float]]], name: str
) -> None:
    pipeline, options = make_pipeline(), dict(HF[name])
    ours = {**options, "stop_criteria": _CRITERIA[options.get("early_stopping", False)]}
    ours.pop("early_stopping", None)
    for text in INPUTS:
        prompt = tokenized(pipeline.get_tokenizer(), text, special_tokens=True)
        tokens, scores = transformers_answer(prompt, **options)
        found = pipeline.generate(ov.Tensor(np.array([prompt])), **ours)
        assert found.tokens == tokens
        assert found.scores == pytest.approx(scores, rel=5e-4, abs=5e-4)


def test_a_score_is_the_mean_log_probability_of_a_pass_over_the_text(make_pipeline: Make) -> None:
    pipeline = make_pipeline()
    prompt = tokenized(pipeline.get_tokenizer(), PROMPTS[0], special_tokens=True)
    found = pipeline.generate(ov.Tensor(np.array([prompt])), num_beams=3, num_return_sequences=3,
                              max_new_tokens=20)  # fmt: skip
    for tokens, score in zip(found.tokens, found.scores, strict=True):
        assert score * 20 == pytest.approx(Scorer(pipeline).score(prompt, tokens)[0], abs=1e-3)
    assert found.scores == sorted(found.scores, reverse=True)


def test_a_stop_string_ends_a_beam_where_it_begins(make_pipeline: Make) -> None:
    """OpenVINO GenAI cuts the tokens of the beams beside it too, or fails."""
    pipeline = make_pipeline()
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 30, "stop_strings": {"lay", "."}}
    cut = pipeline.generate([PROMPTS[0]], **options)
    kept = pipeline.generate([PROMPTS[0]], **options, include_stop_str_in_output=True)
    assert cut.scores == kept.scores and set(cut.finish_reasons) == {GenerationFinishReason.STOP}
    for short, long in zip(cut.texts, kept.texts, strict=True):
        assert long.startswith(short) and long[len(short) :].startswith(("lay", "."))
        assert "lay" not in short and "." not in short


def test_nothing_ends_with_ignore_eos_and_nothing_before_min_new_tokens(make_pipeline: Make) -> None:
    """OpenVINO GenAI's beams know neither."""
    pipeline = make_pipeline()
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 40, "stop_token_ids": {15}}
    stopped = pipeline.generate([PROMPTS[0]], **options)
    assert set(stopped.finish_reasons) == {GenerationFinishReason.STOP}
    for given in ({"ignore_eos": True}, {"min_new_tokens": 40}):
        found = pipeline.generate([PROMPTS[0]], **options, **given)
        assert set(found.finish_reasons) == {GenerationFinishReason.LENGTH}


def test_beams_of_a_pipeline_that_drafts_are_those_of_one_that_does_not(
    make_pipeline: Make, caplog: pytest.LogCaptureFixture
) -> None:
    drafting, options = make_pipeline(draft=True), CASES["three"]
    before = drafting.get_generation_config()
    config = ovspec.GenerationConfig(num_assistant_tokens=3)
    try:
        drafting.set_generation_config(config)  # a default, which beams put aside
        with caplog.at_level(logging.WARNING):
            found = drafting.generate(list(INPUTS), eos_token_id=0, **options)
    finally:
        drafting.set_generation_config(before)
    assert "beams are searched without drafts: drafter 'assistant' rests" in caplog.text
    assert found.texts == make_pipeline().generate(list(INPUTS), **options).texts
    assert found.perf_metrics.get_num_accepted_tokens() == 0
    with pytest.raises(ValueError, match=r"^num_assistant_tokens=3: num_beams=3 are searched without drafts"):
        drafting.generate(PROMPTS[0], num_assistant_tokens=3, **options)


def test_a_chat_and_its_history_are_answered_by_the_best_beam(demo_ir: Path) -> None:
    pipeline, options = ovspec.LLMPipeline(demo_ir, "CPU", **F32), {"num_beams": 3, "max_new_tokens": 12}
    pipeline.get_tokenizer().set_chat_template("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    turn = ChatHistory([{"role": "user", "content": "Hello"}])
    (want,) = pipeline.generate(turn, **options).texts
    pipeline.start_chat()
    try:
        assert pipeline.generate("Hello", **options) == want
    finally:
        pipeline.finish_chat()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"num_beams": 0}, "num_beams=0: expected 1 or more"),
    "length penalty of one": ({"length_penalty": 2.0}, "length_penalty=2: it is for beams; set num_beams"),
    "criteria of one": ({"stop_criteria": StopCriteria.EARLY}, "stop_criteria=StopCriteria.EARLY: it is for"),
    "not a number": ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty=nan: expected a fin"),
    "no groups": ({"num_beams": 2, "num_beam_groups": 0}, "num_beam_groups=0: expected 1 or more"),
    "groups": ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "generation config: 'num_b"),
    "too many answers": ({"num_beams": 2, "num_return_sequences": 3}, "generation config: 'num_beams'"),
    "sampling": ({"num_beams": 2, "do_sample": True}, "generation config: Beam search with sampling"),
    "penalty": (
        {"num_beams": 2, "repetition_penalty": 1.2},
        "repetition_penalty=1.2: beams take no penalty; set",
    ),
    "too wide": ({"num_beams": 513}, "num_beams=513: a pass has 512 rows, one for each beam"),
    "no token": ({"num_beams": 2, "max_new_tokens": 0, "echo": True}, "max_new_tokens=0: num_beams=2"),
    "grammar": (
        {"num_beams": 2, "structured_output_config": openvino_genai.StructuredOutputConfig(regex="a+")},
        "structured_output_config: num_beams=2 follow no grammar",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_beams_can_not_do_is_refused_in_one_line(make_pipeline: Make, name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
        make_pipeline().generate([PROMPTS[0]], **{"max_new_tokens": 4, **options})
    assert "\n" not in str(caught.value)


def test_a_streamer_is_refused(make_pipeline: Make) -> None:
    with pytest.raises(ValueError, match=r"^streamer: the best of num_beams=2 comes at the end"):
        make_pipeline().generate(PROMPTS[0], num_beams=2, max_new_tokens=4, streamer=print)
