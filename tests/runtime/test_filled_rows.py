"""Passes of few rows take a graph of more: the same bits, and no more blocks than without."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from settings import F32

from ovspec.runtime import background_compile
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows

SETTINGS = [{}, F32, {**F32, "KV_CACHE_PRECISION": "f16"}]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 3)


def runner_of(folder: Path, backend: Any = "native", **properties: Any) -> ModelRunner:
    """With the graph of five rows compiled."""
    runner = ModelRunner(folder, attention=AttentionConfig(backend), properties=properties)
    sequence = CachedSequence()
    runner.cache.ensure(16)
    for _ in range(4):
        forward(runner, sequence, range(5))
        assert runner.fixed_graphs is not None
        runner.fixed_graphs.wait()
    runner.release(sequence)
    return runner


def forward(runner: ModelRunner, sequence: CachedSequence, tokens: Iterable[int]) -> NDArray[np.float32]:
    """Logits of every token's row."""
    rows = np.array([*tokens], np.int64)
    return np.array(runner.forward([Rows(sequence, rows, len(rows))]))


def rows_of(runner: ModelRunner) -> int:
    """Of the last pass's graph, 0 for the one of any shapes."""
    shape = runner.request.get_compiled_model().input("input_ids").get_partial_shape()
    return 0 if shape.is_dynamic else shape[0].get_length()


@pytest.mark.parametrize("properties", SETTINGS)
def test_they_have_the_bits_of_their_own_graph(demo_ir: Path, properties: dict[str, str]) -> None:
    runner, sequence, found = runner_of(demo_ir, **properties), CachedSequence(), []
    text = range(100, 140)
    forward(runner, sequence, text)
    for count in (4, 2, 1, 3, 5, 2, 2, 4, 3):  # across the end of a block
        found.append(forward(runner, sequence, range(count)))
        assert rows_of(runner) == 5 and sequence.length == len(text) + sum(map(len, found))
    runner.release(sequence)
    runner.fixed_graphs = None
    forward(runner, sequence, text)
    for logits in found:
        np.testing.assert_array_equal(logits, forward(runner, sequence, range(len(logits))))


def test_they_take_no_block_that_is_not_there(demo_ir: Path) -> None:
    runner, sequence = runner_of(demo_ir), CachedSequence()
    size = runner.block_size
    forward(runner, sequence, range(size - 3))
    forward(runner, sequence, range(2))
    assert rows_of(runner) == 0 and len(sequence.table) == 1  # five rows need a second block
    forward(runner, sequence, range(2))
    assert rows_of(runner) == 5 and len(sequence.table) == 2  # so do two, and there is room for five
    sequence.rollback(size - 3)
    forward(runner, sequence, range(2))
    assert rows_of(runner) == 5  # it is still there


def test_only_where_rows_do_not_depend_on_those_behind(demo_ir: Path) -> None:
    """A key by channel rounds its block anew; OpenVINO's attention sums by the number of rows."""
    by_channel = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    for runner in (runner_of(demo_ir, "stock"), runner_of(demo_ir, **by_channel)):
        sequence = CachedSequence()
        forward(runner, sequence, range(40))
        forward(runner, sequence, range(5))
        assert rows_of(runner) == 5
        forward(runner, sequence, range(2))
        assert rows_of(runner) == 0
