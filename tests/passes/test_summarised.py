"""Which passes make summaries of keys, and that none is missing or of other tokens where it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from passes.summaries import check_summaries
from settings import F32

from ovspec.cache.cache import CachedSequence
from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.passes.native_selection import NativeSelection
from ovspec.passes.tables import Rows
from ovspec.passes.visual_pieces import visual_pieces
from ovspec.runner import model_runner
from ovspec.runner.cache_file import load_prefix, save_prefix
from ovspec.runner.model_runner import ModelRunner

SELECTS = AttentionConfig("native", True)
LENGTH = 330


@pytest.fixture(scope="module")
def runner(demo_ir: Path) -> ModelRunner:
    made = ModelRunner(demo_ir, "CPU", SELECTS, F32)
    made.limit_cache(None, 2**30)
    return made


@pytest.fixture
def text() -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(2, 4096, LENGTH)


def summarised_lens(runner: ModelRunner) -> list[int]:
    lens: list[int] = runner.request.get_tensor("summarised_lens").data.tolist()
    return lens


def test_steps_that_read_everything_leave_them_to_the_next_that_selects(
    runner: ModelRunner, text: NDArray[np.int64]
) -> None:
    sequence = CachedSequence()
    runner.prefill(sequence, text, 512)
    check_summaries(runner, sequence)
    for _ in range(40):
        runner.forward([Rows(sequence, text[:1])])
        assert summarised_lens(runner) == [-1]
    runner.forward([Rows(sequence, text[:3], budget=1)])
    assert summarised_lens(runner) == [LENGTH]
    check_summaries(runner, sequence)
    runner.release(sequence)


def test_those_who_share_blocks_have_their_summaries(runner: ModelRunner, text: NDArray[np.int64]) -> None:
    tokens, owner = text.tolist(), CachedSequence()
    runner.prefill(owner, text, 512)
    runner.publish(owner, tokens)
    newcomers = [CachedSequence(), CachedSequence()]
    for one in newcomers:
        assert runner.share(one, tokens) == one.summarised == LENGTH // 32 * 32
    # In one pass, each as if it had none: both list the same blocks.
    for one in newcomers:
        one.summarised = 0
    runner.cache.tensor("key_summary.0").data[owner.table] = 0
    runner.forward([Rows(one, text[:5], budget=1) for one in newcomers])
    assert summarised_lens(runner) == [0, 0]
    for one in newcomers:
        check_summaries(runner, one)
    for one in (owner, *newcomers):
        runner.release(one)


def test_a_file_of_a_prefix_has_none(
    runner: ModelRunner, demo_ir: Path, text: NDArray[np.int64], tmp_path: Path
) -> None:
    tokens, first = text.tolist(), CachedSequence()
    runner.prefill(first, text, 512)
    runner.publish(first, tokens)
    runner.release(first)
    held = save_prefix(tmp_path / "prefix.safetensors", demo_ir, runner, tokens)
    other = ModelRunner(demo_ir, "CPU", SELECTS, F32)
    other.limit_cache(None, 2**30)
    assert load_prefix(tmp_path / "prefix.safetensors", demo_ir, other) == held
    sequence = CachedSequence()
    assert other.share(sequence, tokens) == held and sequence.summarised == 0
    other.forward([Rows(sequence, text[held:], budget=1)])
    check_summaries(other, sequence)


def test_a_pass_that_fails_late_has_made_none(
    runner: ModelRunner, text: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = CachedSequence()
    runner.prefill(sequence, text, 512)

    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model_runner, "read_prompts", fails)
        with pytest.raises(MemoryError):
            runner.forward([Rows(sequence, text[:48], budget=1)])
    runner.forward([Rows(sequence, text[60:124])])
    runner.forward([Rows(sequence, text[:1], budget=1)])
    check_summaries(runner, sequence)
    runner.release(sequence)


def test_one_piece_of_a_sequence_makes_those_of_all(runner: ModelRunner) -> None:
    """Pieces end within blocks, which two of them would write."""
    selection = runner._selection
    assert isinstance(selection, NativeSelection)
    places = np.arange(40, 140)
    visual = VisualPrompt(places, np.zeros((100, 4), np.float32), places, runs=((40, 140),))
    sequence, other = CachedSequence(visual=visual), CachedSequence(length=70, summarised=33)
    rows = Rows(sequence, np.arange(180), is_prompt=True)
    batch = [*visual_pieces([rows]), Rows(other, np.arange(3), budget=1), Rows(other, np.arange(3), offset=3)]
    lens = selection.inputs(batch)["summarised_lens"].tolist()
    assert lens == [-1] * 101 + [0, 33, -1]
    assert len(visual_pieces([rows])) == 102


def test_where_layers_can_be_left_out_all_passes_of_all_layers_make_them(
    demo_ir: Path, text: NDArray[np.int64]
) -> None:
    backends = Backends.resolve(demo_ir, "CPU", F32, SELECTS, skips_layers=True)
    runner, sequence = ModelRunner(demo_ir, backends=backends), CachedSequence()
    runner.prefill(sequence, text, 512)
    runner.forward([Rows(sequence, text[:1])])
    assert summarised_lens(runner) == [LENGTH]
    runner.forward([Rows(sequence, text[:1], budget=1, layers=(0, 5))])  # a draft
    assert summarised_lens(runner) == [LENGTH + 1]
    sequence.rollback(LENGTH + 1)
    runner.forward([Rows(sequence, text[:2], budget=1)])
    check_summaries(runner, sequence)
