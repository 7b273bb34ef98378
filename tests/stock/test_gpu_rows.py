"""Rows as a GPU gets them, run on the CPU: other shapes, the same logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from settings import F32
from tiers import by_tier

from ovspec.cache.block_manager import BlockManager
from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows, build_tables
from ovspec.runner.model_runner import ModelRunner
from ovspec.stock import gpu_rows
from ovspec.stock.gpu_rows import GpuRows, more_rows
from ovspec_transforms import Selection

# Rows, budget and rollback of two sequences, pass by pass.
LIFE = [
    ((100, -1, 0), (37, -1, 0)),
    ((200, -1, 0), (70, -1, 0)),
    ((1, 5, 0), (1, 2, 0)),
    ((5, 5, 2), (4, 2, 3)),
    ((3, 5, 0), (8, 2, 7)),
    ((9, 5, 0), (2, -1, 0)),
    ((8, 4, 7), (8, 3, 7)),
    ((40, 6, 40), (1, 3, 0)),
    ((2, 5, 1), (90, -1, 0)),
    ((7, 5, 3), (6, 4, 2)),
]
RULES = {
    "dense": AttentionConfig("stock"),
    "sparse": AttentionConfig("stock", True, None, Selection("paper")),
    "ends": AttentionConfig("stock", True, (0, 2), Selection("paper", 2, 2)),
    "coverage": AttentionConfig("stock", True, None, Selection("paper"), 0.7),
}


def test_numbers_of_rows_repeat() -> None:
    sizes = [count + more_rows(count) for count in range(1, 513)]
    assert sizes[:17] == [1, 2, 4, 4, *[8] * 4, *[16] * 8, 32]
    assert len(set(sizes)) == 15 and sizes[-1] == 512


def test_no_rows_are_added_where_the_cache_has_no_room() -> None:
    blocks, sequence = BlockManager(16), CachedSequence()
    blocks.limit(4, 0)
    batch = [Rows(sequence, np.zeros(37, np.int64))]
    assert len(GpuRows().arranged(batch, blocks)[0]) == 1
    blocks.limit(5, 0)
    filled = GpuRows().arranged(batch, blocks)[0]
    assert [len(rows.tokens) for rows in filled] == [37, 11] and filled[1].sampled == 0


def test_numbers_of_sampled_rows_repeat() -> None:
    """Also where the rows of the pass are as many as they should be."""
    sizes = []
    for sampled in (0, 1, 3, 9):
        rows = Rows(CachedSequence(np.zeros(1, np.int32)), np.zeros(16, np.int64), sampled=sampled)
        found = GpuRows().fitted(build_tables([rows], 16, False))["sampled_tokens_indices"]
        assert found[:sampled].tolist() == list(range(16 - sampled, 16)) and set(found[sampled:]) <= {15}
        sizes.append(len(found))
    assert sizes == [0, 1, 4, 16]


def test_the_root_of_a_mask_is_its_rows_whatever_its_rounding() -> None:
    batch = [
        Rows(CachedSequence(np.zeros(3, np.int32), 20), np.zeros(count, np.int64), parents=parents)
        for count, parents in ((3, np.array([-1, 0, 0], np.int32)), (2, None), (8, np.arange(-1, 7)))
    ]
    tables = build_tables(batch, 16, False)
    assert tables["qq_bias_begins"].tolist() == [0, 9, 9, 73]
    fitted = GpuRows().fitted(dict(tables))
    masks, begins = fitted["qq_bias"], fitted["qq_bias_begins"]
    assert begins.tolist() == [0, 12, 12, 84] and len(masks) == 128
    for begin, end, rows, at in ((0, 12, 3, 0), (12, 84, 8, 9)):
        root = np.sqrt(end - begin)
        assert rows + 0.25 < root < rows + 0.75
        assert (
            masks[begin : begin + rows * rows].tolist() == tables["qq_bias"][at : at + rows * rows].tolist()
        )
    none = GpuRows().fitted(build_tables([replace(batch[0], parents=None)], 16, False))
    assert none["qq_bias_begins"].tolist() == [0, 0] and len(none["qq_bias"]) == 64


@pytest.mark.parametrize("quicker", [1, 2, 4, 8])
def test_the_quicker_kernel_is_taken(monkeypatch: pytest.MonkeyPatch, quicker: int) -> None:
    """One by one, so many rows cost half of what they cost together, and more rows twice as much."""
    rows, clock = GpuRows(), [0.0]
    monkeypatch.setattr(gpu_rows, "microseconds", lambda: clock[0])

    def forward(batch: list[Rows]) -> NDArray[np.float32]:
        clock[0] += 10 if not rows.apart(batch) else 5 if len(batch[0].tokens) <= quicker else 20
        batch[0].sequence.length = batch[0].context
        return np.zeros((0, 0), np.float32)

    rows.measure(forward, BlockManager(16))
    assert rows.most_apart == quicker


@pytest.mark.parametrize(
    ("positions", "contexts"), [(None, {960}), (8192, {960}), (512, {504}), (8, set[int]())]
)
def test_no_position_is_measured_that_the_model_lacks(positions: int | None, contexts: set[int]) -> None:
    found, most, blocks = set[int](), 0, BlockManager(16)

    def forward(batch: list[Rows]) -> NDArray[np.float32]:
        nonlocal most
        found.add(batch[0].sequence.length)
        most = max(most, batch[0].context)
        batch[0].sequence.length = batch[0].context
        return np.zeros((0, 0), np.float32)

    GpuRows().measure(forward, blocks, positions)
    assert found == contexts and most <= (positions or 968)
    assert blocks.usage == 0


def test_a_pass_that_raises_gives_the_blocks_of_added_rows_back(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, sequence = ModelRunner(demo_ir, "CPU", AttentionConfig("stock"), F32), CachedSequence()
    runner.gpu_rows = GpuRows()
    rows = Rows(sequence, np.zeros(37, np.int64))

    def fails(inputs: object) -> None:
        assert runner.blocks.num_blocks == 3  # of 32 tokens: 37 rows, and 11 more
        raise RuntimeError("no pass")

    monkeypatch.setattr(runner._inputs, "write", fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no pass"):
            runner.forward([rows])
        assert len(sequence.table) == 2 and sequence.length == 0
        assert runner.blocks.usage == 2 / 3
    monkeypatch.undo()
    assert runner.forward([rows]).logits.shape == (1, 4096)


@pytest.mark.parametrize("name", by_tier(RULES, ("sparse",)))
def test_the_same_logits(demo_ir: Path, name: str) -> None:
    rng = np.random.default_rng(3)
    tokens = [[rng.integers(2, 4096, count) for count, *_ in step] for step in LIFE]
    plain, ours = (
        run(demo_ir, RULES[name], tokens, rows) for rows in (None, GpuRows(splits=name != "coverage"))
    )
    for number, (expected, found) in enumerate(zip(plain, ours, strict=True)):
        np.testing.assert_allclose(found[0], expected[0], atol=1e-3, rtol=0, err_msg=f"pass {number}")
        assert found[1] == expected[1]


def run(
    demo_ir: Path, attention: AttentionConfig, tokens: list[list[NDArray[np.int64]]], rows: GpuRows | None
) -> list[tuple[NDArray[np.float32], float]]:
    """Logits of all passes, and the tokens that their attention read."""
    runner, found = ModelRunner(demo_ir, "CPU", attention, F32), []
    runner.gpu_rows, counts = rows, set[int]()
    if rows:
        rows.most_apart = 8
    sequences = [CachedSequence(), CachedSequence()]
    for step, pair in zip(LIFE, tokens, strict=True):
        batch = [
            Rows(one, some, sampled=min(len(some), 64), budget=budget)
            for one, some, (_, budget, _) in zip(sequences, pair, step, strict=True)
        ]
        apart = not (attention.selects and attention.covers) and all(
            1 <= len(one.tokens) <= 8 and one.sequence.length for one in batch
        )
        result = runner.forward(batch)
        found.append((result.logits.copy(), result.stats.attended_tokens))
        count = len(runner.request.get_tensor("input_ids").data)
        alone = len(runner.request.get_tensor("subsequence_begins").data) - 1 == count
        assert alone == (count == 2 or (apart and rows is not None))
        counts.add(count)
        for one, (_, _, back) in zip(sequences, step, strict=True):
            one.rollback(one.length - back)
    assert (counts <= {2, 4, 8, 16, 32, 48, 64, 128, 192, 256, 320}) == (rows is not None)
    return found
