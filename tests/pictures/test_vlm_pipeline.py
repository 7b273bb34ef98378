"""VLMPipeline answers as transformers does, greedy in f32, whatever is drafted and however passes are cut."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai import ChatHistory
from pictures.reference import Reference, on_white, pixels
from settings import F32, F32_CACHE
from tiers import by_tier
from tiny_pictures import PICTURES, TINY_VISUAL, shapes

import ovspec

NEW_TOKENS = 24
QUESTION = "What is there, what is there, and what is there?"


@pytest.fixture(scope="module", params=by_tier(TINY_VISUAL, ["Qwen2.5-VL"]))
def folder(request: pytest.FixtureRequest, visual_family: Callable[[str], Path]) -> Path:
    return visual_family(request.param)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder.parent / "checkpoint")


@pytest.fixture(scope="module")
def make(folder: Path) -> Callable[..., ovspec.VLMPipeline]:
    @functools.lru_cache(4)
    def made(**options: Any) -> ovspec.VLMPipeline:
        return ovspec.VLMPipeline(folder, "CPU", **{"drafter": "none", **options}, **F32)

    return made


def answer(pipeline: ovspec.VLMPipeline, prompt: Any, pictures: list[Any], **options: Any) -> str:
    given = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, **options}
    return str(pipeline.generate(prompt, images=pictures, **given))


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup", "suffix"])
def test_greedy_answers_are_those_of_transformers(
    make: Callable[..., ovspec.VLMPipeline], reference: Reference, drafter: str
) -> None:
    pipeline = make(drafter=drafter)
    texts = set()
    for picture in PICTURES:
        expected = reference.answer([on_white(picture), QUESTION], NEW_TOKENS)
        found = answer(pipeline, QUESTION, [picture])
        assert found == pipeline.get_tokenizer().decode(expected)
        texts.add(found)
    assert len(texts) > 5  # the model sees them


def test_several_pictures_stand_where_the_text_says(
    make: Callable[..., ovspec.VLMPipeline], reference: Reference
) -> None:
    pipeline, (first, second) = make(), PICTURES[:2]
    parts = ["The one ", second, " is not ", first, ", or is it?"]
    expected = pipeline.get_tokenizer().decode(reference.answer(parts, NEW_TOKENS))
    text = "The one <ov_genai_image_1> is not <ov_genai_image_0>, or is it?"
    assert answer(pipeline, text, [first, second]) == expected
    tag = pipeline.picture_prompts.tag
    assert answer(pipeline, f"The one {tag} is not {tag}, or is it?", [second, first]) == expected
    history = ChatHistory([{"role": "user", "content": text}])
    assert answer(pipeline, history, [first, second]) == expected


def test_long_texts_behind_pictures(make: Callable[..., ovspec.VLMPipeline], reference: Reference) -> None:
    parts = [PICTURES[0], "Then: ", PICTURES[3], QUESTION * 12]
    expected = make().get_tokenizer().decode(reference.answer(parts, NEW_TOKENS))
    text = f"<ov_genai_image_0>Then: <ov_genai_image_1>{QUESTION * 12}"
    for options in ({}, {"drafter": "prompt_lookup"}, {"max_num_batched_tokens": 5}):
        assert answer(make(**options), text, [PICTURES[0], PICTURES[3]]) == expected


def test_without_pictures_it_is_a_text_model(
    make: Callable[..., ovspec.VLMPipeline], reference: Reference, folder: Path
) -> None:
    expected = make().get_tokenizer().decode(reference.answer([QUESTION], NEW_TOKENS))
    assert answer(make(), QUESTION, []) == expected
    text = ovspec.LLMPipeline(folder, "CPU", drafter="none", **F32)
    assert text.generate(QUESTION, max_new_tokens=NEW_TOKENS, ignore_eos=True) == expected


def test_chunks_of_prompts_and_what_is_cached_change_nothing(make: Callable[..., ovspec.VLMPipeline]) -> None:
    expected = [answer(make(), QUESTION, [picture]) for picture in PICTURES[:4]]
    pipeline = make(max_num_batched_tokens=7)
    hits = []
    for _ in range(2):
        assert [answer(pipeline, QUESTION, [picture]) for picture in PICTURES[:4]] == expected
        hits.append(pipeline.runner.blocks.hits)
    if not pipeline.runner.recurrent:  # no state is kept to go on behind
        assert hits[1] > hits[0]  # the same pictures are found again


def test_a_chat_keeps_its_pictures(make: Callable[..., ovspec.VLMPipeline]) -> None:
    pipeline, (first, second) = make(), PICTURES[:2]
    pipeline.start_chat()
    one = answer(pipeline, "Look.", [first])
    two = answer(pipeline, "And this? Not <ov_genai_image_0> but <ov_genai_image_1>!", [second])
    pipeline.finish_chat()
    history = ChatHistory([{"role": "user", "content": "<ov_genai_image_0>Look."}])
    assert answer(pipeline, history, [first]) == one
    history.append({"role": "assistant", "content": one})
    history.append({"role": "user", "content": "And this? Not <ov_genai_image_0> but <ov_genai_image_1>!"})
    assert answer(pipeline, history, [first, second]) == two


def test_committed_sparse_verification_is_exact(make: Callable[..., ovspec.VLMPipeline]) -> None:
    verify = ovspec.CommitVerify(ovspec.SparseVerify(L0=16, rho=0.1), interval=6)
    pipeline = make(drafter="suffix", verify=verify)
    for picture in PICTURES:
        assert answer(pipeline, QUESTION, [picture]) == answer(make(), QUESTION, [picture])


def test_pictures_count_in_the_memory_plan(make: Callable[..., ovspec.VLMPipeline], folder: Path) -> None:
    text = ovspec.LLMPipeline(folder, "CPU", drafter="none", **F32)
    parts = sum(file.stat().st_size for file in folder.glob("openvino_vision*.bin"))
    plan = make().memory_plan
    assert plan.pictures == 2**29 and text.memory_plan.pictures == 0
    assert plan.total - text.memory_plan.total > 0.9 * parts + plan.pictures
    with pytest.raises(ValueError, match=r"needs .* \(weights .*, pictures 0\.54, "):
        ovspec.VLMPipeline(folder, "CPU", memory_limit=plan.total - plan.pictures, **F32)


def test_openvino_genai_answers_alike(make: Callable[..., ovspec.VLMPipeline], folder: Path) -> None:
    other = openvino_genai.VLMPipeline(folder, "CPU", **F32_CACHE)
    # Of a size that the model reads, since it resizes pictures in its own way.
    size = (112, 112) if "Gemma" in str(folder) else (448, 224)
    picture = pixels(shapes(*size, 7))
    config = ovspec.GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True, do_sample=False)
    for given in ([ov.Tensor(picture)], [ov.Tensor(picture[None])], [ov.Tensor(np.stack([picture] * 2))]):
        theirs = other.generate(QUESTION, images=given, generation_config=config)
        assert make().generate(QUESTION, given, config).texts == theirs.texts


def test_names_of_special_tokens_in_a_text_are_no_pictures(
    make: Callable[..., ovspec.VLMPipeline],
) -> None:
    pipeline = make()
    names = ("<|image_pad|>", "<image_soft_token>")
    pad = next(name for name in names if name in pipeline.picture_prompts.text)
    found = [
        pipeline.generate(f"What is {name}?", images=PICTURES[0], max_new_tokens=1).perf_metrics
        for name in ("", pad)
    ]
    spelled = found[1].get_num_input_tokens() - found[0].get_num_input_tokens()
    assert spelled > 3  # letters, and no row of a picture
