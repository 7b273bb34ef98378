"""Rows that nobody reads keep the number of rows of a small draft's passes, and change nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from settings import F32

from ovspec.pipeline.assistant_model import AssistantChoices
from ovspec.pipeline.draft_model import draft_model
from ovspec.pipeline.head_model import draft_choices
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.backends import Backends
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.draft_runner import draft_runner
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.repeated_rows import REPEATED_ROWS
from ovspec.runtime.tables import Rows
from ovspec_models import ModelInfo
from ovspec_models.sparse_verify import SparseVerify

SMALL = 1 << 20
# A prompt, then what drafts read: across the end of a block, back again, and more rows than are repeated.
PASSES = ((27, 0), (2, 0), (1, 0), (1, 0), (1, 0), (4, 2), (1, 0), (9, 0), (1, 0), (64, 0), (3, 1))


def runner_of(
    folder: Path, backend: Any = "native", weight_bytes: int = SMALL, **properties: str
) -> ModelRunner:
    attention = AttentionConfig(backend, selects=properties.pop("selects", None) is not None)
    backends = Backends.resolve(folder, properties=properties or F32, attention=attention)
    return draft_runner(folder, backends, weight_bytes)


def logits(runner: ModelRunner) -> tuple[list[NDArray[np.float32]], list[int]]:
    """Of every pass, and the rows that the graph had."""
    sequence, found, rows = CachedSequence(), [], []
    tokens = np.random.default_rng(0).integers(2, 4096, 200)
    for number, (count, back) in enumerate(PASSES):
        sequence.rollback(sequence.length - back)
        part = tokens[number : number + count]
        found.append(np.array(runner.forward([Rows(sequence, part, sampled=min(count, 2))])))
        rows.append(runner.request.get_tensor("input_ids").shape[0])
    runner.release(sequence)
    return found, rows


def test_they_change_no_bit(demo_ir: Path) -> None:
    runner = runner_of(demo_ir / "draft")
    assert runner.repeats_rows
    repeated, rows = logits(runner)
    assert rows == [max(REPEATED_ROWS, count) for count, _ in PASSES]
    runner.repeats_rows = False
    plain, rows = logits(runner)
    assert rows == [count for count, _ in PASSES]
    for one, other in zip(repeated, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_passes_of_several_sequences_and_trees_have_none(demo_ir: Path) -> None:
    runner = runner_of(demo_ir / "draft")
    two, tree = [CachedSequence(), CachedSequence()], np.array([-1, -1], np.int32)
    runner.forward([Rows(one, np.array([5, 6])) for one in two])
    assert runner.request.get_tensor("input_ids").shape[0] == 4
    runner.forward([Rows(two[0], np.array([5, 6]), parents=tree)])
    assert runner.request.get_tensor("input_ids").shape[0] == 2


@pytest.mark.parametrize(
    ("arguments", "repeats"),
    [
        ({}, True),
        ({"backend": "stock"}, True),
        ({"weight_bytes": 1 << 30}, False),
        ({"selects": "yes"}, False),
        ({"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}, False),
    ],
)
def test_small_models_whose_rows_do_not_depend_on_them_have_them(
    demo_ir: Path, arguments: dict[str, Any], repeats: bool
) -> None:
    assert runner_of(demo_ir / "draft", **arguments).repeats_rows == repeats


@pytest.mark.parametrize("draft", ["draft", "eagle3"])
@pytest.mark.parametrize(("asked", "expected"), [(None, "native"), ("native", "native"), ("stock", "stock")])
def test_drafts_take_the_attention_of_their_target(
    demo_ir: Path, draft: str, asked: Any, expected: str
) -> None:
    target = ModelInfo.read(demo_ir)
    found = draft_choices(draft_model(demo_ir / draft), target, "dense", "CPU", asked, F32, None)
    assert found is not None
    assert (found.backends.attention.backend, found.backends.linear) == (expected, expected)


@pytest.mark.parametrize(("positions", "reads_all"), [(8192, True), (70_000, False), (None, False)])
def test_a_small_draft_with_a_small_cache_reads_all(
    demo_ir: Path, tmp_path: Path, positions: int | None, reads_all: bool
) -> None:
    """Where the target may not: 288 bytes of cache for a token are 20 MB for 70,000."""
    folder = shutil.copytree(demo_ir / "draft", tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if name != "max_position_embeddings"}
    if positions is not None:
        config["max_position_embeddings"] = positions
    (folder / "config.json").write_text(json.dumps(config))
    target, sparse = ModelInfo.read(demo_ir), SparseVerify(budget=128)
    found = draft_choices(draft_model(folder), target, sparse, "CPU", None, F32, None)
    assert isinstance(found, AssistantChoices)
    assert found.sparse == (None if reads_all else sparse)
    assert found.backends.attention.selects != reads_all  # by ours
