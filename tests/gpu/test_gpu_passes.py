"""Passes of a paged model on a GPU: attention and lists against NumPy, logits against the CPU in f32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from passes.selection_life import probed_runner
from settings import F32_CACHE
from stock.stock_oracle import RULES, check_life

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows
from ovspec.runner.cache_file import load_prefix, save_prefix
from ovspec.runner.model_runner import ModelRunner

pytestmark = pytest.mark.gpu

Runners = tuple[ModelRunner, ModelRunner]
TOLERANCE = 5e-3  # of logits up to 30, behind six layers


@pytest.fixture(scope="module")
def runners(demo_ir: Path, gpu: str) -> Runners:
    """The demo target on the CPU and on the GPU."""
    on_cpu, on_gpu = (
        ModelRunner(demo_ir, device, AttentionConfig("stock"), F32_CACHE) for device in ("CPU", gpu)
    )
    return on_cpu, on_gpu


class Twins:
    """One sequence on both devices, which get the same tokens."""

    def __init__(self, runners: Runners, seed: int = 0) -> None:
        self.runners, self.sequences = runners, (CachedSequence(), CachedSequence())
        self._rng = np.random.default_rng(seed)

    def rows(self, count: int, sampled: int | None = None) -> list[Rows]:
        tokens = self._rng.integers(2, 4096, count)
        return [Rows(one, tokens, sampled=count if sampled is None else sampled) for one in self.sequences]

    def both(self, action: Callable[[ModelRunner, CachedSequence], object]) -> None:
        for runner, sequence in zip(self.runners, self.sequences, strict=True):
            action(runner, sequence)


def compare(runners: Runners, batches: list[list[Rows]]) -> None:
    """Run one pass of several sequences on both."""
    logits = [
        np.array(runner.forward([twin[i] for twin in batches]).logits) for i, runner in enumerate(runners)
    ]
    np.testing.assert_allclose(*logits, atol=TOLERANCE, rtol=0)
    assert np.array_equal(*(one.argmax(-1) for one in logits))


@pytest.mark.parametrize("name", ["the paper's", "everything"])
def test_lists_and_attention_are_those_of_the_oracle(demo_ir: Path, gpu: str, name: str) -> None:
    runner = probed_runner(demo_ir, RULES[name], gpu)
    assert runner.block_size == 16
    set_apart(runner, 8)
    check_life(runner, exp_error=2**-11)  # of native_exp on a CPU's OpenCL, as measured


def set_apart(runner: ModelRunner, rows: int) -> None:
    """Overrule what was measured at start: so many rows of a sequence are sequences of their own."""
    assert runner.gpu_rows is not None
    runner.gpu_rows.most_apart = rows


@pytest.mark.parametrize("apart", [1, 8])
def test_prompts_drafts_and_rollbacks(runners: Runners, apart: int) -> None:
    set_apart(runners[1], apart)
    twins = Twins(runners)
    for chunk in (100, 60, 40, 3):  # the last is short
        compare(runners, [twins.rows(chunk)])
    for back in range(9):
        compare(runners, [twins.rows(9)])
        twins.both(lambda _, one, back=back: one.rollback(one.length - back))
        compare(runners, [twins.rows(1)])
    twins.both(ModelRunner.release)


def test_three_sequences_take_turns(runners: Runners) -> None:
    a, b, c = (Twins(runners, seed) for seed in range(3))
    compare(runners, [a.rows(40)])
    compare(runners, [a.rows(5), b.rows(70)])
    compare(runners, [b.rows(3), a.rows(1), c.rows(30)])
    b.both(lambda _, one: one.rollback(one.length - 2))
    compare(runners, [c.rows(6), a.rows(2), b.rows(5)])
    a.both(ModelRunner.release)
    d = Twins(runners, 3)  # in the blocks of `a`
    compare(runners, [b.rows(1), d.rows(33), c.rows(4)])
    compare(runners, [d.rows(2), b.rows(2)])
    for twins in (b, c, d):
        twins.both(ModelRunner.release)


def test_the_cache_grows_and_keeps_its_contents(runners: Runners) -> None:
    twins = Twins(runners)
    capacity = [_capacity(runner) for runner in runners]
    while _capacity(runners[1]) == capacity[1]:
        compare(runners, [twins.rows(200, sampled=1)])
    compare(runners, [twins.rows(4)])
    twins.both(ModelRunner.release)


def _capacity(runner: ModelRunner) -> int:
    names = [spec.name for spec in runner.cache.specs]
    return int(runner.cache.tensor(names[0]).get_shape()[0]) if runner.blocks.num_blocks else 0


@pytest.mark.parametrize("rows", [[0, 2, 5], [1], [0, 1, 2, 7, 8]], ids=str)
def test_an_accepted_path_moves_to_its_place(runners: Runners, rows: list[int]) -> None:
    twins = Twins(runners)
    compare(runners, [twins.rows(27)])
    compare(runners, [twins.rows(9)])
    twins.both(lambda runner, one: runner.compact(one, 27, rows))
    compare(runners, [twins.rows(3)])
    twins.both(ModelRunner.release)


def test_trees_of_two_sequences_in_one_pass(runners: Runners) -> None:
    """A mask of three rows has nine elements, whose root may be computed as less than 3."""
    if reason := runners[1].why_no_trees:
        pytest.skip(f"this device: {reason}")
    a, b, c = (Twins(runners, seed) for seed in range(3))
    compare(runners, [a.rows(27), b.rows(40), c.rows(9)])
    path, other = [0, 2, 4, 7], [0, 2]
    trees = [([-1, 0, 0, 1, 2, -1, 4, 4], a), ([-1, 0, 0], b)]
    batches = [
        [replace(rows, parents=np.array(parents, np.int32)) for rows in twins.rows(len(parents))]
        for parents, twins in trees
    ]
    compare(runners, [*batches, c.rows(5)])
    a.both(lambda runner, one: runner.compact(one, 27, path))
    b.both(lambda runner, one: runner.compact(one, 40, other))
    compare(runners, [a.rows(3), b.rows(1), c.rows(2)])
    for twins in (a, b, c):
        twins.both(ModelRunner.release)


def test_a_shared_block_that_is_written_is_copied(runners: Runners) -> None:
    twins, heirs = Twins(runners), Twins(runners, 1)
    tokens = np.arange(2, 50)
    for runner, one, heir in zip(runners, twins.sequences, heirs.sequences, strict=True):
        runner.limit_cache(None, 1 << 30)
        runner.forward([Rows(one, tokens)])
        runner.publish(one, tokens.tolist())
        assert runner.share(heir, [*tokens.tolist(), 0])
        heir.rollback(20)
    compare(runners, [heirs.rows(9)])
    compare(runners, [twins.rows(4)])
    for both in (twins, heirs):
        both.both(ModelRunner.release)


def test_a_prefix_file_is_read_back(runners: Runners, demo_ir: Path, tmp_path: Path) -> None:
    runner = runners[1]
    runner.limit_cache(None, 1 << 30)
    one, tokens = CachedSequence(), np.arange(5, 75)
    logits: list[NDArray[np.float32]] = [np.array(runner.forward([Rows(one, tokens)]).logits)]
    runner.publish(one, tokens.tolist())
    runner.release(one)
    save_prefix(tmp_path / "prefix", demo_ir, runner, tokens.tolist())
    runner.blocks.forget()
    read = load_prefix(tmp_path / "prefix", demo_ir, runner)
    assert read == 64
    again = CachedSequence()
    assert runner.share(again, tokens.tolist()) == read
    logits.append(np.array(runner.forward([Rows(again, tokens[read:])]).logits))
    np.testing.assert_allclose(*logits, atol=TOLERANCE, rtol=0)
    runner.release(again)


def test_a_cache_that_does_not_fit_the_device(demo_ir: Path, gpu: str) -> None:
    """The plugin counts what it allocates, so its own refusal comes before any memory is touched."""
    runner = ModelRunner(demo_ir, gpu, AttentionConfig("stock"), F32_CACHE)
    room = _capacity(runner) * runner.block_size
    with pytest.raises(RuntimeError, match=f"out of memory; it has room for {room} tokens"):
        runner.cache.ensure(2**40 // runner.cache.block_bytes)
    one = CachedSequence()
    assert np.isfinite(runner.forward([Rows(one, np.arange(2, 50))]).logits).all()


def test_caches_lie_on_the_device(runners: Runners) -> None:
    on_cpu, on_gpu = runners
    for name in ("key_cache.0", "value_cache.5"):
        assert isinstance(on_gpu.cache.tensor(name), ov.RemoteTensor)
        assert not isinstance(on_cpu.cache.tensor(name), ov.RemoteTensor)
