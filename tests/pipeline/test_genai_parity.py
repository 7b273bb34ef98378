"""Greedy decoding with a draft gives what `openvino_genai.LLMPipeline` gives, option by option."""

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
from openvino_genai import GenerationConfig, TokenizedInputs
from prompts import PROMPTS, STORY
from settings import F32
from tiers import by_tier

import ovspec

Make = Callable[..., ovspec.LLMPipeline]

EOS, UNUSED = 0, 4095  # the demo pair's end of sequence, and an id that it does not emit here
ENDING = [PROMPTS[32], PROMPTS[22]]  # greedy answers of 53 and 54 tokens, the last of them EOS
OPEN = [PROMPTS[0], PROMPTS[7]]  # answers that go on for more than 200 tokens

# Options as keyword arguments of `generate`, on the pipeline's own configuration.
KEYWORDS: dict[str, dict[str, Any]] = {
    "one token": {"max_new_tokens": 1},
    "max_new_tokens": {"max_new_tokens": 37},
    "max_length": {"max_length": 50},
    "max_length is the prompt and one": {"max_length": 26},
    "max_new_tokens before max_length": {"max_new_tokens": 40, "max_length": 30},
    "eos": {"max_new_tokens": 65},
    "ignore_eos": {"max_new_tokens": 65, "ignore_eos": True},
    "stop_token_ids": {"max_new_tokens": 65, "stop_token_ids": {15, 300}},
    "unused stop_token_ids": {"max_new_tokens": 65, "stop_token_ids": {UNUSED}},
    "ignore_eos with stop_token_ids": {"max_new_tokens": 65, "ignore_eos": True, "stop_token_ids": {15, 300}},
    "min_new_tokens": {"max_new_tokens": 65, "min_new_tokens": 58},
    "min_new_tokens and stop_token_ids": {"max_new_tokens": 65, "min_new_tokens": 20, "stop_token_ids": {15}},
    "repetition_penalty": {"max_new_tokens": 30, "repetition_penalty": 1.3},
    "repetition_penalty below one": {"max_new_tokens": 30, "repetition_penalty": 0.8},
    "presence_penalty": {"max_new_tokens": 30, "presence_penalty": 1.5},
    "frequency_penalty": {"max_new_tokens": 30, "frequency_penalty": 0.7},
    "all penalties": {
        "max_new_tokens": 30, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.3,
    },
    # openvino_genai drops whole tokens with an excluded stop string, so these strings are tokens.
    "stop_strings": {"max_new_tokens": 30, "stop_strings": {" because", " play"}},
    "stop_strings included": {
        "max_new_tokens": 30, "stop_strings": {".", "named"}, "include_stop_str_in_output": True,
    },
}  # fmt: skip

# These do nothing beyond the cut at max_new_tokens, which has precedence over max_length.
WITHOUT_EFFECT = (
    "one token",
    "max_new_tokens",
    "max_new_tokens before max_length",
    "eos",
    "unused stop_token_ids",
)
TEXTS = ("max_new_tokens", "eos", "stop_token_ids", "all penalties", "stop_strings", "stop_strings included")

# The same as a new `GenerationConfig`, which names no EOS: each is set on an empty configuration.
CONFIGS: dict[str, dict[str, Any]] = {
    "no stop": {"max_new_tokens": 200},
    "stop_token_ids": {"max_new_tokens": 200, "stop_token_ids": {UNUSED}},
    "ignore_eos": {"max_new_tokens": 65, "ignore_eos": True},
    "ignore_eos with stop_token_ids": {
        "max_new_tokens": 65,
        "ignore_eos": True,
        "stop_token_ids": {15, UNUSED},
    },
    "eos_token_id": {"max_new_tokens": 65, "eos_token_id": 15},
    "eos_token_id and stop_token_ids": {
        "max_new_tokens": 65,
        "eos_token_id": UNUSED,
        "stop_token_ids": {UNUSED},
    },
    "max_length": {"max_length": 120},
    "min_new_tokens": {"max_new_tokens": 65, "min_new_tokens": 58},
}


# Options that the others have one by one.
SECOND = {
    *("unused stop_token_ids", "ignore_eos with stop_token_ids", "min_new_tokens and stop_token_ids"),
    *("max_new_tokens before max_length", "repetition_penalty below one"),
}


@pytest.fixture(scope="module")
def drafting(make_pipeline: Make) -> ovspec.LLMPipeline:
    return make_pipeline(draft=True)


def outcome(pipeline: Any, prompt: str, *config: GenerationConfig, **options: Any) -> tuple[Any, ...]:
    """The tokens, why they end, and the text that was streamed meanwhile."""
    pieces: list[str] = []
    encoded = pipeline.get_tokenizer().encode(prompt)
    results = pipeline.generate(encoded, *config, streamer=pieces.append, **options)
    return list(results.tokens[0]), results.finish_reasons[0], "".join(pieces)


def config_of(options: dict[str, Any]) -> GenerationConfig:
    config = GenerationConfig()
    for name, value in options.items():
        setattr(config, name, value)
    return config


@pytest.fixture(scope="module")
def plain(genai: openvino_genai.LLMPipeline) -> dict[str, list[int]]:
    answers = {prompt: outcome(genai, prompt, max_new_tokens=70)[0] for prompt in (ENDING[0], OPEN[0])}
    assert [len(answer) for answer in answers.values()] == [53, 70] and answers[ENDING[0]][-1] == EOS
    return answers


@pytest.mark.parametrize("name", by_tier(KEYWORDS, KEYWORDS.keys() - SECOND))
def test_keywords(
    drafting: ovspec.LLMPipeline,
    genai: openvino_genai.LLMPipeline,
    plain: dict[str, list[int]],
    name: str,
) -> None:
    options = KEYWORDS[name]
    ours = [outcome(drafting, prompt, **options) for prompt in plain]
    assert ours == [outcome(genai, prompt, **options) for prompt in plain]
    # Each option changes the output of at least one prompt; otherwise the comparison would prove nothing.
    cut = [answer[: options.get("max_new_tokens", 70)] for answer in plain.values()]
    has_effect = [tokens for tokens, *_ in ours] != cut
    assert has_effect == (name not in WITHOUT_EFFECT)


@pytest.mark.parametrize("name", TEXTS)
def test_text(drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, name: str) -> None:
    def text_and_stream(pipeline: Any, prompt: str) -> tuple[str, str]:
        pieces: list[str] = []
        text = pipeline.generate(prompt, streamer=pieces.append, **KEYWORDS[name])
        return str(text), "".join(pieces)

    for prompt in (ENDING[1], OPEN[1]):
        assert text_and_stream(drafting, prompt) == text_and_stream(genai, prompt)


@pytest.mark.parametrize("name", CONFIGS)
def test_configuration_object(
    drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, name: str
) -> None:
    ours, theirs = config_of(CONFIGS[name]), config_of(CONFIGS[name])
    assert outcome(drafting, ENDING[0], ours) == outcome(genai, ENDING[0], theirs)


@pytest.mark.parametrize("form", ["text", "tokens", "list"])
@pytest.mark.parametrize("length", [1, 13, 14])
def test_max_length_that_the_prompt_reaches_is_refused(
    drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, form: str, length: int
) -> None:
    prompt = PROMPTS[0]
    encoded = genai.get_tokenizer().encode(prompt)
    assert encoded.input_ids.shape[1] == 14
    inputs = {"text": prompt, "tokens": encoded, "list": [prompt]}[form]
    with pytest.raises(RuntimeError):
        genai.generate(inputs, max_length=length)
    with pytest.raises(ValueError, match="max_length") as caught:
        drafting.generate(inputs, max_length=length)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"max_new_tokens": 30}, {"max_length": 60}, {"repetition_penalty": 1.2}])
def test_list_of_prompts(
    drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, options: dict[str, Any]
) -> None:
    prompts = [OPEN[0], ENDING[1], PROMPTS[4], PROMPTS[21]]
    options = {"max_new_tokens": 56} | options if "max_length" not in options else options
    ours, theirs = drafting.generate(prompts, **options), genai.generate(prompts, **options)
    assert ours.texts == theirs.texts
    assert ours.finish_reasons == theirs.finish_reasons
    assert len(ours.scores) == len(theirs.scores)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_tokens(drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, side: str) -> None:
    prompts = [OPEN[0], STORY, ENDING[1]]
    inputs = genai.get_tokenizer().encode(prompts, padding_side=side)
    mask = np.array(inputs.attention_mask.data)
    assert (mask[0, 0] == 0) == (side == "left") and mask[1].all()
    ours = drafting.generate(inputs, max_new_tokens=25)
    theirs = genai.generate(inputs, max_new_tokens=25)
    assert [list(row) for row in ours.tokens] == [list(row) for row in theirs.tokens]
    alone = [outcome(genai, prompt, max_new_tokens=25)[0] for prompt in prompts]
    assert [list(row) for row in ours.tokens] == alone


def test_token_ids_without_a_mask(drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline) -> None:
    ids = np.array(genai.get_tokenizer().encode(OPEN[1]).input_ids.data)
    ours, theirs = (p.generate(ov.Tensor(ids), max_new_tokens=25) for p in (drafting, genai))
    assert list(ours.tokens[0]) == list(theirs.tokens[0])
    masked = TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    assert list(drafting.generate(masked, max_new_tokens=25).tokens[0]) == list(theirs.tokens[0])


@pytest.mark.parametrize("form", ["text", "list", "tokens"])
@pytest.mark.parametrize("count", [1, 3])
def test_type_of_what_is_returned(
    drafting: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, form: str, count: int
) -> None:
    prompt = OPEN[0]
    inputs = {"text": prompt, "list": [prompt], "tokens": genai.get_tokenizer().encode(prompt)}[form]
    options = {"max_new_tokens": 6, "do_sample": True, "num_return_sequences": count}
    ours, theirs = drafting.generate(inputs, **options), genai.generate(inputs, **options)
    assert type(ours).__name__ == type(theirs).__name__
    if form != "tokens" and not isinstance(theirs, str):
        assert len(ours.texts) == len(theirs.texts) == len(ours.scores) == count
    elif form == "tokens":
        assert len(ours.tokens) == len(theirs.tokens) == len(ours.finish_reasons) == count


@pytest.mark.parametrize("where", by_tier(["generation_config.json", "both"], ["both"]))
def test_folder_with_several_eos_ids(tmp_path: Path, demo_ir: Path, where: str) -> None:
    """As chat models have them; a passed configuration names none of them."""
    shutil.copytree(demo_ir, tmp_path / "model")
    names = ["generation_config.json", "config.json"][: 2 if where == "both" else 1]
    for path in [tmp_path / "model" / part / name for part in (".", "draft") for name in names]:
        path.write_text(
            json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"eos_token_id": [EOS, 15]})
        )
    genai = openvino_genai.LLMPipeline(tmp_path / "model", "CPU", **F32)
    draft = ovspec.draft_model(tmp_path / "model" / "draft")
    ours = ovspec.LLMPipeline(tmp_path / "model", "CPU", draft_model=draft, drafter="assistant", **F32)
    for prompt in (ENDING[0], OPEN[0]):
        for stop in (set(), {UNUSED}, {300}):
            config = config_of({"max_new_tokens": 65} | ({"stop_token_ids": stop} if stop else {}))
            assert outcome(ours, prompt, config) == outcome(genai, prompt, config), (prompt, stop)
        assert outcome(ours, prompt, max_new_tokens=60) == outcome(genai, prompt, max_new_tokens=60), prompt
