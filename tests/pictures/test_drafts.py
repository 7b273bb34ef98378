"""Who drafts answers about ten pictures changes none of them; a draft model reads the text alone."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from drafters.eagle3_models import SHAPES
from drafters.eagle3_models import Reference as Head
from pictures.reference import Reference, on_white, pixels
from pictures.test_vlm_pipeline import NEW_TOKENS, QUESTION
from settings import F32
from tiers import by_tier
from tiny_pictures import PICTURES, TINY_VISUAL

import ovspec
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.heads import export_head, open_head
from ovspec_models.synthetic import build_model

#: Of the tiny models, which have two layers.
BOUNDARIES = (0, 1, 2)
COUNT = 4
# Of the tiny tokenizers' tokens, the last ones stand for pictures and videos.
SMALL = replace(SHAPES["llama"], vocab_size=4100)
WAYS: dict[str, dict[str, Any]] = {
    "chains": {},
    "trees": {"tree_depth": 3, "branching_factor": 2},
    "sampled": {"do_sample": True, "rng_seed": 7},
}


@pytest.fixture(scope="module", params=by_tier(TINY_VISUAL, ["Qwen2.5-VL"]))
def folder(request: pytest.FixtureRequest, visual_family: Callable[[str], Path]) -> Path:
    return visual_family(request.param)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Callable[..., list[str]]:
    """Answers about all pictures, without drafts."""

    @functools.cache
    def answered(sampled: bool) -> list[str]:
        pipeline = ovspec.VLMPipeline(folder, "CPU", drafter="none", **F32)
        return [text for text, _ in answers(pipeline, **(WAYS["sampled"] if sampled else {}))]

    return answered


def answers(pipeline: ovspec.VLMPipeline, **options: Any) -> list[tuple[str, Any]]:
    """Texts and metrics, one for each picture."""
    given = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, **options}
    found = [pipeline.generate(QUESTION, images=picture, **given) for picture in PICTURES]
    return [(result.texts[0], result.perf_metrics) for result in found]


def with_draft(folder: Path, draft: Path) -> ovspec.VLMPipeline:
    given = ovspec.draft_model(draft, "CPU", **F32)
    return ovspec.VLMPipeline(folder, "CPU", draft_model=given, drafter="assistant", **F32)


@pytest.fixture
def small(folder: Path, tmp_path: Path) -> Path:
    """A text model with the target's tokenizer, and no row for the token that stands for pictures."""
    draft = tmp_path / "small"
    draft.mkdir()
    ov.save_model(build_model(SMALL, "fp32", seed=2), draft / "openvino_model.xml", compress_to_fp16=False)
    (draft / "config.json").write_text(json.dumps({**asdict(SMALL), "rope_scaling": None}))
    for file in folder.glob("*token*"):
        shutil.copy(file, draft)
    return draft


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_draft_model_reads_the_text_alone(
    folder: Path, plain: Callable[..., list[str]], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model as a text model: of 10 pictures it reads no token, and drafts what is accepted."""
    if folder.parent.name == "tiny visual Qwen3.5" and way == "trees":
        pytest.skip("its linear attention verifies chains")
    expected = plain(way == "sampled")
    pipeline, read = with_draft(folder, folder), list[Rows]()
    forward, target = ModelRunner.forward, pipeline.runner

    def watched(runner: ModelRunner, batch: list[Rows]) -> Any:
        read.extend(batch if runner is not target else [])
        return forward(runner, batch)

    monkeypatch.setattr(ModelRunner, "forward", watched)
    found = answers(pipeline, num_assistant_tokens=COUNT, **WAYS[way])
    assert [text for text, _ in found] == expected
    if way == "sampled":  # the greedy choices of random weights may be others without the picture
        assert sum(metrics.get_num_accepted_tokens() for _, metrics in found) > 5
    rows = [len(pipeline.picture_prompts.encode(pixels(picture)).rows) for picture in PICTURES]
    prompts = [metrics.get_num_input_tokens() for _, metrics in found]
    text = {prompt - own for prompt, own in zip(prompts, rows, strict=True)}
    assert len(text) == 1 and max(len(one.tokens) for one in read) == max(text) < max(prompts)


@pytest.mark.slow
def test_a_draft_model_without_the_tokens_of_pictures(
    folder: Path, plain: Callable[..., list[str]], small: Path
) -> None:
    """As Gemma 3's text models, which have no embedding of the token that stands for pictures."""
    pipeline = with_draft(folder, small)
    found = answers(pipeline, num_assistant_tokens=COUNT)
    assert [text for text, _ in found] == plain(False)
    assert all(metrics.raw_metrics.num_drafts > 5 for _, metrics in found)


def test_nothing_is_drafted_behind_a_token_that_the_draft_model_lacks(folder: Path, small: Path) -> None:
    given = ovspec.draft_model(small, "CPU", **F32)
    pipeline = ovspec.LLMPipeline(folder, "CPU", draft_model=given, drafter="assistant", **F32)
    options = {"max_new_tokens": 12, "ignore_eos": True, "num_assistant_tokens": COUNT}
    drafts = []
    for last in (SMALL.vocab_size - 1, SMALL.vocab_size):
        found = pipeline.generate(ov.Tensor(np.array([[5, 9, last]], np.int64)), **options)
        drafts.append(found.perf_metrics.raw_metrics.num_drafts)
    assert drafts[0] > 0 and drafts[1] == 0


@functools.cache
def head_of(checkpoint: Path) -> Head:
    """An EAGLE-3 head that has learnt the answers about the first pictures, from the model's states."""
    reference, texts = Reference(checkpoint), []
    model = reference.model
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, output = (layer.weight.detach().clone() for layer in layers)
    head = Head(embedding, output=output)
    head.ids = torch.arange(len(output))
    for picture in PICTURES[:4]:
        inputs = reference.inputs([on_white(picture), QUESTION])
        tokens, kinds = inputs["input_ids"][0].tolist(), [k for k in inputs if k.endswith("type_ids")]
        tokens += reference.answer([on_white(picture), QUESTION], NEW_TOKENS)
        whole = {**inputs, "input_ids": torch.tensor([tokens])}
        for name in kinds:
            whole[name] = torch.nn.functional.pad(inputs[name], (0, NEW_TOKENS))
        with torch.no_grad():
            states = model(**whole, output_hidden_states=True).hidden_states
        texts.append((tokens, torch.cat([states[boundary][0] for boundary in BOUNDARIES], -1)))
    head.train(texts, 80)
    return head


@pytest.mark.slow
def test_a_head_drafts(folder: Path, plain: Callable[..., list[str]], tmp_path: Path) -> None:
    """It has learnt four of the answers, and their states come from the pictures."""
    vocab = ModelInfo.read(folder).vocab_size
    said = {"vocab_size": vocab, "eagle_aux_hidden_state_layer_ids": list(BOUNDARIES)}
    checkpoint = head_of(folder.parent / "checkpoint").save(tmp_path / "checkpoint", **said)
    export_head(open_head(checkpoint, "eagle3"), ModelInfo.read(folder), tmp_path / "head", "fp32")
    pipeline = with_draft(folder, tmp_path / "head")
    for way in ("chains", "sampled"):
        found = answers(pipeline, num_assistant_tokens=COUNT, **WAYS[way])
        assert [text for text, _ in found] == plain(way == "sampled")
        accepted = [metrics.get_num_accepted_tokens() for _, metrics in found]
        if way == "chains":
            assert sum(accepted[:4]) > 8, accepted
