"""A draft tree verified in one pass, and the accepted path kept in the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine.reference_model import ReferenceModel
from openvino import opset15 as ops
from passes.summaries import check_summaries
from settings import F32
from tiers import by_tier

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows, build_tables
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import Selection, paged_layers, to_paged, tree_mask

PARENTS = [-1, 0, 0, 1, 2, -1, 4, 4]
PATH = [0, 2, 4, 7]
PAPER = Selection("paper")

GRAPHS = {
    "dense": AttentionConfig("native"),
    "stock": AttentionConfig("stock"),
    "selects": AttentionConfig("native", True),
    "paper": AttentionConfig("native", True, None, PAPER),
}


@pytest.fixture(scope="module", params=GRAPHS)
def runner(request: pytest.FixtureRequest, demo_ir: Path) -> ModelRunner:
    return ModelRunner(demo_ir, "CPU", GRAPHS[request.param], F32)


@pytest.fixture(scope="module")
def reference(demo_ir: Path) -> ReferenceModel:
    return ReferenceModel(demo_ir)


def path_to(row: int) -> list[int]:
    return [*(path_to(PARENTS[row]) if PARENTS[row] >= 0 else []), row]


@pytest.mark.parametrize("past", by_tier([5, 27, 29, 31, 64], [5, 29, 64]))
def test_every_path_of_a_tree_and_what_follows_the_accepted_one(
    runner: ModelRunner, reference: ReferenceModel, past: int
) -> None:
    rng = np.random.default_rng(past)
    context, draft = rng.integers(2, 4096, past), rng.integers(2, 4096, len(PARENTS))
    tree, chain = CachedSequence(), CachedSequence()
    for cached in (tree, chain):
        runner.prefill(cached, context, chunk=512)
    batch = [
        Rows(tree, draft, sampled=len(draft), parents=np.array(PARENTS, np.int32)),
        Rows(chain, draft[:3], sampled=3),
    ]
    logits = np.array(runner.forward(batch).logits)
    for row in range(len(PARENTS)):
        expected = reference.logits(np.concatenate([context, draft[path_to(row)]]))[-1]
        np.testing.assert_allclose(logits[row], expected, atol=1e-4, rtol=0, err_msg=f"row {row}")
    expected = reference.logits(np.concatenate([context, draft[:3]]))[past:]
    np.testing.assert_allclose(logits[len(PARENTS) :], expected, atol=1e-4, rtol=0)

    runner.compact(tree, past, PATH)
    assert tree.length == past + len(PATH)
    kept, more = np.concatenate([context, draft[PATH]]), rng.integers(2, 4096, 40)
    after = np.array(runner.forward([Rows(tree, more, sampled=40, budget=99)]).logits)
    expected = reference.logits(np.concatenate([kept, more]))[len(kept) :]
    np.testing.assert_allclose(after, expected, atol=1e-4, rtol=0)
    for cached in (tree, chain):
        runner.release(cached)


@pytest.mark.parametrize("past", by_tier([65, 91, 93, 95, 96, 128], [65, 93]))
@pytest.mark.parametrize("attention", ["selects", "paper"])
def test_moved_rows_are_summarised_again(demo_ir: Path, attention: str, past: int) -> None:
    runner, cached = ModelRunner(demo_ir, "CPU", GRAPHS[attention], F32), CachedSequence()
    rng = np.random.default_rng(past)
    runner.prefill(cached, rng.integers(2, 4096, past), chunk=512)
    assert cached.summarised == past
    runner.forward([Rows(cached, rng.integers(2, 4096, 3))])
    assert cached.summarised == past, "a dense step"
    past += 3
    draft, parents = rng.integers(2, 4096, len(PARENTS)), np.array(PARENTS, np.int32)
    runner.forward([Rows(cached, draft, parents=parents, budget=1)])
    assert cached.summarised == cached.length
    runner.compact(cached, past, PATH)
    assert cached.summarised == past + 1, "the first row did not move"
    runner.forward([Rows(cached, rng.integers(2, 4096, 1), budget=1)])
    check_summaries(runner, cached)


def test_path_without_gaps_moves_nothing(runner: ModelRunner) -> None:
    cached = CachedSequence(np.zeros(1, np.int32), 12)
    runner.compact(cached, 8, [0, 1, 2])
    assert cached.length == 11
    runner.compact(cached, 8, [])
    assert cached.length == 8


@pytest.mark.parametrize("rows", [[1, 1], [2, 0], [-1], [4]])
def test_rows_that_are_no_path_are_refused(runner: ModelRunner, rows: list[int]) -> None:
    with pytest.raises(ValueError, match=r"expected ascending rows out of 0 to 3"):
        runner.compact(CachedSequence(np.zeros(1, np.int32), 12), 8, rows)


def test_keys_by_channel_cannot_be_moved(demo_ir: Path) -> None:
    properties = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    runner = ModelRunner(demo_ir, "CPU", AttentionConfig("native"), properties)
    cached = CachedSequence()
    runner.prefill(cached, np.arange(2, 14), chunk=512)
    with pytest.raises(ValueError, match=r"key_cache\.\d+ has blocks .* set KEY_CACHE_QUANT_MODE=BY_TOKEN"):
        runner.compact(cached, 8, [1, 2])
    runner.compact(cached, 8, [0, 1])
    assert cached.length == 10


def test_why_trees_are_refused(demo_ir: Path) -> None:
    by_channel = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    for attention, properties, mask, reason in (
        (AttentionConfig("native"), by_channel, True, "set KEY_CACHE_QUANT_MODE=BY_TOKEN"),
        (AttentionConfig("stock", True, None, PAPER), {}, False, "with attention='stock' knows chains only"),
        (AttentionConfig("stock"), {}, True, ""),
    ):
        runner = ModelRunner(demo_ir, "CPU", attention, properties)
        assert bool(runner.why_no_tree_mask) != mask
        assert reason in runner.why_no_trees and bool(runner.why_no_trees) == bool(reason)


def test_stock_attention_has_no_trees_where_slots_are_counted() -> None:
    shape = replace(get_shape("qwen3-0.6b"), num_hidden_layers=1, vocab_size=64)
    for window, changed in ((0, 1), (128, 0)):
        model = build_model(shape, "fp32")
        to_paged(model)
        for layer in paged_layers(model):
            constant = ops.constant(np.array(window, np.int32)).output(0)
            layer.node.input(10).replace_source_output(constant)
        report = tree_mask(model)
        assert (report.count, len(report.left)) == (changed, 1 - changed)
        assert ("qq_bias" in {port.get_any_name() for port in model.inputs}) == bool(changed)


def test_tree_that_cannot_be_verified_is_refused() -> None:
    rows = Rows(CachedSequence(), np.zeros(2, np.int64), parents=np.array([-1, -1], np.int32))
    with pytest.raises(ValueError, match="a tree of 2 rows behind 0 tokens: expected 1 to 64 rows"):
        build_tables([rows], 32, native=True)
