"""Gemma 3's pictures, whose rows see each other: where layers have a window, pictures stand within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from openvino_genai import ChatHistory
from passes.summaries import check_summaries
from pictures.reference import Reference, pixels
from settings import F32
from tiny_pictures import PICTURES

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.errors import InvalidValueError
from ovspec.passes.tables import Rows
from ovspec.passes.visual_pieces import visual_pieces
from ovspec_models import ModelInfo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(visual_family: Callable[[str], Path]) -> Path:
    return visual_family("Gemma 3")


def test_a_picture_behind_the_window_is_refused(folder: Path) -> None:
    pipeline = ovspec.VLMPipeline(folder, "CPU", **F32)
    text = "word " * 200 + "<ov_genai_image_0>"
    with pytest.raises(InvalidValueError, match=r"its last picture ends at token .*, .* the first 128"):
        pipeline.generate(text, images=PICTURES[0])
    assert pipeline.generate("go on", images=PICTURES[0], max_new_tokens=2).texts


@pytest.mark.parametrize(("attention", "before"), [("native", ""), ("stock", ""), ("stock", "word " * 200)])
def test_logits_are_those_of_transformers_and_not_causal(folder: Path, attention: str, before: str) -> None:
    import torch

    pipeline = ovspec.VLMPipeline(folder, "CPU", attention=attention, **F32)
    reference, prompts, picture = (
        Reference(folder.parent / "checkpoint"),
        pipeline.picture_prompts,
        PICTURES[0],
    )
    content = prompts.marked(f"{before}<ov_genai_image_0>What is it?", 0, 1)
    history = ChatHistory([{"role": "user", "content": content}])
    made = prompts.prompt(pipeline.chat_prompts.templated(history), [prompts.encode(pixels(picture))])
    inputs = reference.inputs([before, picture, "What is it?"])
    assert inputs["input_ids"][0].tolist() == made.tokens
    with torch.no_grad():
        expected = reference.model(**inputs).logits[0].numpy()

    def apart(visual: VisualPrompt) -> float:
        """How far all logits of the prompt are from transformers', of their spread."""
        sequence, count = CachedSequence(visual=visual), len(made.tokens)
        rows = Rows(sequence, np.array(made.tokens), sampled=count, is_prompt=True)
        found = pipeline.runner.forward([rows]).logits.copy()
        pipeline.runner.release(sequence)
        return float(np.abs(found - expected).max() / expected.std())

    assert made.visual is not None
    assert apart(made.visual) < 2e-4
    if attention == "native":
        assert apart(replace(made.visual, runs=())) > 1e-2


def test_a_picture_has_all_its_summaries(folder: Path) -> None:
    pipeline = ovspec.VLMPipeline(folder, "CPU", verify=ovspec.SparseVerify(budget=32), **F32)
    runner, rng = pipeline.runner, np.random.default_rng(0)
    rows = rng.normal(size=(100, ModelInfo.read(folder).hidden_size)).astype(np.float32)
    visual = VisualPrompt(np.arange(7, 107), rows, np.arange(100), runs=((7, 107),))
    sequence = CachedSequence(visual=visual)
    runner.prefill(sequence, rng.integers(2, 4000, 120), 512, is_prompt=True)
    runner.forward([Rows(sequence, np.array([5]), budget=1)])
    check_summaries(runner, sequence)


def test_rows_of_pictures_are_pieces_that_see_all_of_it() -> None:
    places = np.array([3, 4, 5, 8, 9])
    visual = VisualPrompt(places, np.zeros((5, 4), np.float32), np.arange(5), runs=((3, 6), (8, 10)))
    rows = Rows(CachedSequence(length=2, visual=visual), np.arange(2, 12), sampled=4)
    pieces = visual_pieces([rows])
    assert [(piece.past, len(piece.tokens), piece.seen) for piece in pieces] == [
        *((2, 1, 0), (3, 1, 6), (4, 1, 6), (5, 1, 6)),
        *((6, 2, 0), (8, 1, 10), (9, 1, 10), (10, 2, 0)),
    ]
    assert np.array_equal(np.concatenate([piece.tokens for piece in pieces]), rows.tokens)
    assert sum(piece.sampled for piece in pieces) == 4


@pytest.mark.parametrize(
    ("begin", "end", "cut"), [(0, 3, 3), (0, 4, 3), (0, 6, 6), (3, 5, 6), (4, 5, 6), (0, 9, 8), (6, 12, 12)]
)
def test_passes_cut_no_picture(begin: int, end: int, cut: int) -> None:
    places = np.array([3, 4, 5, 8, 9])
    visual = VisualPrompt(places, np.zeros((5, 4), np.float32), np.arange(5), runs=((3, 6), (8, 10)))
    assert visual.whole(begin, end) == cut
