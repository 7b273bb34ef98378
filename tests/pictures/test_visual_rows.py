"""Rows in the place of tokens, and positions of three axes: logits as of transformers in all passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from settings import F32

from ovspec.cache.cache import CachedSequence
from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

LENGTH, PLACES, GRID = 90, range(20, 68), (6, 8)


@pytest.fixture(scope="module")
def folder(visual_family: Callable[[str], Path]) -> Path:
    return visual_family("Qwen2.5-VL")


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return ModelRunner(folder, properties=F32)


@pytest.fixture(scope="module")
def tokens() -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(2, 4096, LENGTH)


@pytest.fixture(scope="module")
def visual() -> VisualPrompt:
    """A picture of 6 x 8 rows behind 20 tokens."""
    places, (height, width) = np.array(PLACES), GRID
    rows = np.random.default_rng(1).normal(size=(len(places), 64)).astype(np.float32)
    positions = np.tile(np.arange(LENGTH), (3, 1))
    positions[:, places] = 20
    positions[1, places] += np.repeat(np.arange(height), width)
    positions[2, places] += np.tile(np.arange(width), height)
    positions[:, PLACES.stop :] = np.arange(LENGTH - PLACES.stop) + 20 + width
    return VisualPrompt(places, rows, np.arange(len(places)), positions)


@pytest.fixture(scope="module")
def reference(folder: Path, tokens: NDArray[np.int64], visual: VisualPrompt) -> NDArray[np.float32]:
    """Logits f32 `[90, vocab]` of transformers in one pass."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration as Model

    model = Model.from_pretrained(folder.parent / "checkpoint", dtype=torch.float32).eval()
    with torch.no_grad():
        rows = model.get_input_embeddings()(torch.tensor(tokens[None])).clone()
        rows[0, visual.places] = torch.tensor(visual.rows)
        found: Any = model(inputs_embeds=rows, position_ids=torch.tensor(visual.positions)[:, None])
    logits: NDArray[np.float32] = found.logits[0].numpy()
    return logits


def read(runner: ModelRunner, tokens: NDArray[np.int64], visual: VisualPrompt, sizes: list[int]) -> Any:
    sequence, begin, found = CachedSequence(visual=visual), 0, []
    for size in sizes:
        part = tokens[begin : begin + size]
        found.append(runner.forward([Rows(sequence, part, sampled=len(part))]).logits.copy())
        begin += size
    runner.release(sequence)
    return np.concatenate(found)


@pytest.mark.parametrize("sizes", [[90], [33, 33, 24], [20, 48, 22], [70, *[1] * 20], [84, 6]])
def test_logits_are_those_of_transformers(
    runner: ModelRunner,
    tokens: NDArray[np.int64],
    visual: VisualPrompt,
    reference: NDArray[np.float32],
    sizes: list[int],
) -> None:
    found = read(runner, tokens, visual, sizes)
    assert np.abs(found - reference).max() < 2e-4 * reference.std()


def test_positions_behind_the_prompt_go_on(visual: VisualPrompt) -> None:
    behind = visual.positions_of(np.arange(LENGTH - 1, LENGTH + 3), 3)
    last = 20 + GRID[1] + LENGTH - PLACES.stop - 1
    assert behind.tolist() == [[last, last + 1, last + 2, last + 3]] * 3


def test_sequences_with_and_without_pictures_share_a_pass(
    runner: ModelRunner, tokens: NDArray[np.int64], visual: VisualPrompt
) -> None:
    alone = [read(runner, tokens, one, [50, 40]) for one in (visual, None)]
    sequences = [CachedSequence(visual=visual), CachedSequence()]
    together = []
    for begin, end in ((0, 50), (50, 90)):
        rows = [Rows(sequence, tokens[begin:end], sampled=end - begin) for sequence in sequences]
        together.append(runner.forward(rows).logits.copy().reshape(2, end - begin, -1))
    for sequence in sequences:
        runner.release(sequence)
    assert np.array_equal(np.concatenate(together, 1), np.stack(alone))
    assert np.abs(alone[0] - alone[1]).max() > 1


def test_only_equal_pictures_are_alike(visual: VisualPrompt) -> None:
    tokens = [7] * LENGTH
    keyed = visual.keyed(tokens)
    assert keyed[:20] == tokens[:20]
    assert keyed[20:68] == list(range(48))
    assert visual.keyed(tokens[:30]) == keyed[:30]
