"""What the transformed demo target selects and attends, layer by layer, against the NumPy references.

The graph is the real one, run by the real `ModelRunner` through the life of three sequences (`LIFE`); it
only returns more: what enters and leaves every layer, and what every anchor selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from passes.selection_life import (
    BLOCK,
    HEAD_SIZE,
    KV_HEADS,
    LAYERS,
    SCALE,
    TOLERANCE,
    Pass,
    Step,
    passes,
    probed_runner,
)
from settings import F32
from tiers import by_tier

from ovspec.operations.attention_config import AttentionConfig
from ovspec.runner.model_runner import ModelRunner
from ovspec_ops.block_select.reference import block_select
from ovspec_ops.key_summary.reference import means, summarise
from ovspec_ops.verify_attention import pack_tables
from ovspec_transforms import Selection

PAPER = Selection("paper")
EVERY = (0, 1, 2, 3, 4, 5)
GRAPHS: dict[str, tuple[AttentionConfig, tuple[int, ...]]] = {
    "mass": (AttentionConfig("native", True), EVERY),
    "paper": (AttentionConfig("native", True, None, PAPER), (0, 1, 2)),
    "first": (AttentionConfig("native", True, (0,), PAPER), (0,)),
    "apart": (AttentionConfig("native", True, (0, 1, 4), PAPER), (0, 1, 4)),
}


def anchor_of(layer: int, anchors: tuple[int, ...]) -> int:
    """The nearest anchor at or below a layer."""
    return max(anchor for anchor in anchors if anchor <= layer)


@dataclass
class Selecting:
    runner: ModelRunner
    anchors: tuple[int, ...]


@pytest.fixture(scope="module", params=by_tier(GRAPHS, ("mass", "apart")))
def selecting(request: pytest.FixtureRequest, demo_ir: Path) -> Selecting:
    attention, layers = GRAPHS[request.param]
    return Selecting(probed_runner(demo_ir, attention), layers)


def test_only_the_anchors_select(selecting: Selecting) -> None:
    outputs = {name for port in selecting.runner.compiled.outputs for name in port.get_names()}
    assert {int(name[7:]) for name in outputs if name.startswith("blocks.")} == set(selecting.anchors)


def test_key_summaries_are_those_of_the_keys(selecting: Selecting) -> None:
    checked = 0
    for number, one_pass in enumerate(passes(selecting.runner)):
        for anchor in selecting.anchors:
            keys, summary = one_pass.cache(f"key_cache.{anchor}"), one_pass.cache(f"key_summary.{anchor}")
            for name, one in one_pass.live.items():
                where = f"pass {number}, layer {anchor}, sequence {name}"
                true, made = one.keys[anchor], one.cached.summarised
                table = one.cached.table[: -(-len(true) // BLOCK)]
                cached = keys[table].transpose(0, 2, 1, 3).reshape(-1, KV_HEADS, HEAD_SIZE)[: len(true)]
                np.testing.assert_array_equal(cached, true, err_msg=where)
                if name in one_pass.names and one_pass.lists(anchor, one_pass.names.index(name)):
                    assert made == len(true), where
                if not made:
                    continue
                # Behind a rollback the last part is made again by the next pass that selects.
                want = [summarise(keys[block], BLOCK, HEAD_SIZE) for block in table[: made // BLOCK]]
                if made == len(true) and made % BLOCK:
                    want.append(summarise(keys[table[-1]], made % BLOCK, HEAD_SIZE))
                got = summary[table[: len(want)]]
                apart = means(got, HEAD_SIZE) - means(np.stack(want), HEAD_SIZE)
                # A mean key between two of its 16 numbers may fall to either.
                assert (np.abs(apart) > 1e-4).mean() < 1e-3, where
                checked += len(want)
    assert checked > 100


def reference(
    one_pass: Pass, anchor: int, attention: AttentionConfig
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """What the reference selects at an anchor."""
    names = (
        "subsequence_begins", "verify_past_lens", "verify_block_indices", "verify_block_indices_begins",
    )  # fmt: skip
    rule = attention.selection
    return block_select(
        one_pass.seen[f"query.{anchor}"],
        one_pass.cache(f"key_summary.{anchor}"),
        pack_tables(*(one_pass.tables[name] for name in names)),
        one_pass.tables["verify_budgets"],
        np.full(len(one_pass.names), attention.coverage, np.float32),
        kv_heads=KV_HEADS,
        k_size=HEAD_SIZE,
        rule=rule.rule,
        sink_blocks=rule.sink_blocks,
        local_blocks=rule.local_blocks,
        scale=SCALE,
    )


def test_anchors_select_what_the_reference_selects(selecting: Selecting) -> None:
    for number, one_pass in enumerate(passes(selecting.runner)):
        for anchor in selecting.anchors:
            blocks, counts = reference(one_pass, anchor, selecting.runner.attention)
            where = f"pass {number}, layer {anchor}"
            np.testing.assert_array_equal(one_pass.seen[f"counts.{anchor}"], counts, err_msg=where)
            np.testing.assert_array_equal(one_pass.seen[f"blocks.{anchor}"], blocks, err_msg=where)


RULES: dict[str, AttentionConfig] = {
    "mass, wide ends": AttentionConfig("native", True, None, Selection("mass", 2, 3)),
    "mass, coverage": AttentionConfig("native", True, None, Selection(), 0.6),
    "paper, wide ends": AttentionConfig("native", True, (0, 1, 4), Selection("paper", 2, 3)),
    "paper, coverage": AttentionConfig("native", True, (0, 1, 4), PAPER, 0.6),
}


@pytest.mark.parametrize("name", by_tier(RULES, ("mass, coverage", "paper, wide ends")))
def test_every_rule_selects_and_attends_as_the_reference(demo_ir: Path, name: str) -> None:
    attention = RULES[name]
    runner = probed_runner(demo_ir, attention)
    selecting = EVERY if attention.selection.rule == "mass" else (0, 1, 4)
    selected = 0
    for number, one_pass in enumerate(passes(runner)):
        where = f"pass {number}"
        for anchor in selecting:
            blocks, counts = reference(one_pass, anchor, attention)
            np.testing.assert_array_equal(one_pass.seen[f"counts.{anchor}"], counts, err_msg=where)
            np.testing.assert_array_equal(one_pass.seen[f"blocks.{anchor}"], blocks, err_msg=where)
            selected += int((counts >= 0).sum())
        for layer in range(LAYERS):
            anchor = anchor_of(layer, selecting)
            want = one_pass.attention(
                layer, one_pass.seen[f"blocks.{anchor}"], one_pass.seen[f"counts.{anchor}"]
            )
            np.testing.assert_allclose(
                one_pass.output(layer), want, atol=TOLERANCE, rtol=0, err_msg=f"{where}, layer {layer}"
            )
    assert selected > 20


def test_every_layer_attends_the_list_of_its_anchor(selecting: Selecting) -> None:
    for number, one_pass in enumerate(passes(selecting.runner)):
        for layer in range(LAYERS):
            anchor = anchor_of(layer, selecting.anchors)
            blocks, counts = one_pass.seen[f"blocks.{anchor}"], one_pass.seen[f"counts.{anchor}"]
            want = one_pass.attention(layer, blocks, counts)
            np.testing.assert_allclose(
                one_pass.output(layer), want, atol=TOLERANCE, rtol=0, err_msg=f"pass {number}, layer {layer}"
            )


def first_blocks(counts: NDArray[np.int32], tables: dict[str, NDArray[np.int32]]) -> NDArray[np.int32]:
    """Lists of as many blocks, but always the first ones."""
    begins = tables["verify_block_indices_begins"]
    blocks = np.full((len(counts), begins[-1]), -1, np.int32)
    for head, index in np.argwhere(counts >= 0):
        blocks[head, begins[index] : begins[index] + counts[head, index]] = np.arange(counts[head, index])
    return blocks


def test_wrong_lists_would_show(selecting: Selecting) -> None:
    """At every layer the right list differs from other anchors' lists, the first blocks, and all blocks."""
    apart: dict[tuple[int, object], float] = {}
    for one_pass in passes(selecting.runner):
        for layer in range(LAYERS):
            anchor, got = anchor_of(layer, selecting.anchors), one_pass.output(layer)
            counts = one_pass.seen[f"counts.{anchor}"]
            wrong: dict[object, tuple[NDArray[np.int32], NDArray[np.int32]]] = {
                other: (one_pass.seen[f"blocks.{other}"], one_pass.seen[f"counts.{other}"])
                for other in selecting.anchors
                if other != anchor
            }
            wrong["first"] = (first_blocks(counts, one_pass.tables), counts)
            wrong["all"] = (one_pass.seen[f"blocks.{anchor}"], np.full_like(counts, -1))
            for name, (blocks, kept) in wrong.items():
                if apart.get((layer, name), 0.0) > 100 * TOLERANCE:
                    continue
                away = float(np.abs(one_pass.attention(layer, blocks, kept) - got).max())
                apart[layer, name] = max(apart.get((layer, name), 0.0), away)
    assert len(apart) == LAYERS * (len(selecting.anchors) + 1)
    assert min(apart.values()) > 100 * TOLERANCE, apart


def test_counts_and_attended_tokens_are_those_of_the_lists(selecting: Selecting) -> None:
    for number, one_pass in enumerate(passes(selecting.runner)):
        counts = np.full((LAYERS, KV_HEADS, len(one_pass.contexts)), -1)
        attended = context_tokens = 0.0
        for index, context in enumerate(one_pass.contexts):
            if context is None:
                continue
            read = np.full((LAYERS, KV_HEADS), float(context))
            for layer in range(LAYERS):
                lists = one_pass.lists(anchor_of(layer, selecting.anchors), index)
                for head, kept in enumerate(lists or []):
                    counts[layer, head, index] = len(kept)
                    read[layer, head] = sum(min(BLOCK, context - block * BLOCK) for block in kept)
            attended += read.mean()
            if read.mean() < context:
                attended += selecting.runner._selection.summary_share * -(-context // BLOCK) * BLOCK
            context_tokens += context
        if (one_pass.tables["verify_budgets"] == -1).all():  # nobody selects
            counts = counts[:, :, :0]
        np.testing.assert_array_equal(one_pass.seen["selected_counts"], counts, err_msg=f"pass {number}")
        assert one_pass.stats.attended_tokens == pytest.approx(attended), f"pass {number}"
        assert one_pass.stats.context_tokens == context_tokens, f"pass {number}"
        assert context_tokens == 0 or attended < context_tokens or -1 in one_pass.tables["verify_budgets"]


@pytest.mark.parametrize("selecting", ["mass", "apart"], indirect=True)
@pytest.mark.parametrize("rows", [1, 2, 5, 33, 64])
def test_tight_budgets_keep_the_ends(selecting: Selecting, rows: int) -> None:
    """Block 0, the block of the last context token and the rows' own blocks, whatever they score."""
    steps: list[Step] = [{"a": (330, -1, 0)}]
    for budget in (1, 2, 6):
        for past in (321, 320, 319):
            # Rolling back to `past`, then the rows, then forward again with a pass that is dense.
            steps += [{"a": (1, -1, 331 - past)}, {"a": (rows, budget, rows)}, {"a": (330 - past, -1, 0)}]
    middle: set[int] = set()
    for one_pass in passes(selecting.runner, steps):
        (context,), (budget,) = one_pass.contexts, one_pass.tables["verify_budgets"]
        if context is None or budget < 0:
            continue
        must = {0, (context - rows - 1) // BLOCK} | {p // BLOCK for p in range(context - rows, context)}
        for anchor in selecting.anchors:
            lists = one_pass.lists(anchor, 0)
            assert lists is not None and len(lists) == KV_HEADS
            for kept in lists:
                assert must <= set(kept) and len(kept) == max(budget, len(must)), (anchor, budget, kept)
                middle |= set(kept) - must
    assert len(middle) > 3, "beside the ends there was room for blocks that score"


def test_probes_change_nothing(demo_ir: Path) -> None:
    plain = ModelRunner(demo_ir, "CPU", AttentionConfig("native", True), F32)
    for probed, bare in zip(
        passes(probed_runner(demo_ir, AttentionConfig("native", True))), passes(plain), strict=True
    ):
        np.testing.assert_allclose(probed.logits, bare.logits, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(probed.seen["selected_counts"], bare.seen["selected_counts"])
