"""What the transformed demo target selects and attends, layer by layer, against the NumPy references.

The graph is the real one, run by the real `ModelRunner` through the life of three sequences (`LIFE`); it
only returns more: what enters and leaves every layer, and what every anchor selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from settings import F32

from ovspec import model_runner
from ovspec.cache import CachedSequence
from ovspec.model_runner import AttentionConfig, ModelRunner, PassStats
from ovspec.tables import Rows
from ovspec_ops.block_select import block_select
from ovspec_ops.verify_attention import verify_attention
from ovspec_transforms import PassReport, paged_layers

BLOCK, LAYERS, KV_HEADS, HEAD_SIZE = 32, 6, 2, 64
SCALE = HEAD_SIZE**-0.5
TOLERANCE = 1e-4
QUERY, KEY = 0, 1  # inputs of PagedAttentionExtension

ANCHORS: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...]]] = {
    "default": (None, (0, 1, 2)),
    "first": ((0,), (0,)),
    "apart": ((0, 1, 4), (0, 1, 4)),
    "all": ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)),
}

# A step is one pass: per sequence its rows, its budget in blocks, and how many tokens are rolled back
# afterwards. More than 64 rows, or rows of an empty sequence, are a prefill. `None` releases a sequence.
Step = dict[str, tuple[int, int, int] | None]
LIFE: list[Step] = [
    *[{"a": (70, -1, 0)}] * 4,
    {"a": (6, 5, 0)},
    {"a": (6, 5, 1)},
    {"a": (8, 5, 7)},
    {"a": (5, 4, 5)},
    *[{"b": (130, -1, 0)}] * 3,
    {"a": (1, 6, 0), "b": (8, 4, 3)},
    {"b": (5, 7, 4), "a": (5, 6, 3)},
    {"a": (33, 5, 32), "b": (1, -1, 0)},
    {"a": (4, 1, 40)},  # over a block border, as when a chat changes its history
    {"b": (64, 9, 60)},  # across two borders and back
    {"b": (7, 8, 0), "a": (3, 6, 1)},
    {"b": (5, 6, 2), "c": (150, -1, 0)},  # a prefill beside a verification, and the cache grows
    {"a": (21, 6, 0)},
    {"c": (90, -1, 0), "a": (1, 5, 0)},
    {"a": None},
    {"d": (230, -1, 0)},  # in the blocks of "a", whose summaries are still there
    {"c": (4, 3, 3), "d": (9, 4, 8), "b": (2, 6, 1)},
    {"d": (1, 5, 0), "c": (64, 6, 0)},
    {"d": (1, 5, 100), "c": (1, 9, 0)},
    {"d": (6, 4, 0), "b": (6, 40, 0), "c": (6, 8, 0)},
]
# Blocks of a sequence that takes no part: they keep physical and logical numbers apart.
IDLE_BLOCKS = 40


@dataclass
class Live:
    """A sequence and the keys of its tokens, `[tokens, kv_heads, size]` per layer, as of its last pass."""

    cached: CachedSequence = field(default_factory=CachedSequence)
    keys: dict[int, NDArray[np.float32]] = field(default_factory=dict)


@dataclass
class Pass:
    """One pass, before the rollback that follows it.

    Attributes:
        tables: what the operations are to be given, computed here and not by `ovspec.tables`.
        seen: `query.N`, `output.N` of every layer; `blocks.N`, `counts.N` of every anchor; `selected_counts`.
        live: all sequences, those that were not in this pass included.
        contexts: per sequence of the pass its tokens after it; `None` for a prefill.
    """

    tables: dict[str, NDArray[np.int32]]
    seen: dict[str, NDArray[np.float32]]
    live: dict[str, Live]
    contexts: list[int | None]
    stats: PassStats
    logits: NDArray[np.float32]
    cache: Callable[[str], NDArray[np.float32]]

    def attention(
        self, layer: int, blocks: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> NDArray[np.float64]:
        """What a layer should return for these lists; zeros in the rows of a prefill."""
        query = self.seen[f"query.{layer}"]
        caches = [self.cache(f"{side}_cache.{layer}") for side in ("key", "value")]
        names = (
            "subsequence_begins",
            "verify_past_lens",
            "verify_block_indices",
            "verify_block_indices_begins",
        )
        return verify_attention(
            query, *caches, np.zeros_like(query), *[self.tables[name] for name in names], blocks, counts,
            kv_heads=KV_HEADS, k_size=HEAD_SIZE, v_size=HEAD_SIZE, scale=SCALE,
        )  # fmt: skip

    def output(self, layer: int) -> NDArray[np.float32]:
        """What the layer did return, with zeros in the rows of a prefill."""
        out, begins = self.seen[f"output.{layer}"].copy(), self.tables["subsequence_begins"]
        for index, context in enumerate(self.contexts):
            if context is None:
                out[begins[index] : begins[index + 1]] = 0
        return out

    def lists(self, anchor: int, index: int) -> list[list[int]] | None:
        """Per KV head the blocks kept for the pass's sequence `index`; `None` where all are read."""
        blocks, counts = self.seen[f"blocks.{anchor}"], self.seen[f"counts.{anchor}"]
        begin, end = self.tables["verify_block_indices_begins"][index : index + 2]
        if counts[0, index] < 0:
            return None
        return [[int(block) for block in row if block >= 0] for row in blocks[:, begin:end]]


def probe(model: ov.Model) -> None:
    """Let the model return what its layers see and give."""
    results = []

    def watch(output: ov.Output, name: str) -> None:
        output.add_names({name})
        results.append(ops.result(output))

    selects = [node for node in model.get_ordered_ops() if node.get_type_name() == "BlockSelect"]
    for layer in paged_layers(model):
        (routed,) = {port.get_node() for port in layer.node.output(0).get_target_inputs()
                     if port.get_node().get_type_name() == "VerifyAttention"}  # fmt: skip
        watch(layer.node.input(QUERY).get_source_output(), f"query.{layer.index}")
        watch(layer.node.input(KEY).get_source_output(), f"key.{layer.index}")
        watch(routed.output(0), f"output.{layer.index}")
        for select in selects:
            if f"key_summary.{layer.index}" in select.input(1).get_source_output().get_names():
                watch(select.output(0), f"blocks.{layer.index}")
                watch(select.output(1), f"counts.{layer.index}")
    model.add_results(results)


def probed_runner(demo_ir: Path, anchors: tuple[int, ...] | None) -> ModelRunner:
    """The runner as it is, except that its graph is probed after its own passes."""
    transform = model_runner.transform

    def transform_and_probe(model: ov.Model, attention: AttentionConfig) -> list[PassReport]:
        reports = transform(model, attention)
        probe(model)
        return reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_runner, "transform", transform_and_probe)
        return ModelRunner(demo_ir, "CPU", AttentionConfig("native", True, anchors), F32)


def tables_of(batch: list[Rows]) -> tuple[dict[str, NDArray[np.int32]], list[int | None]]:
    """The operations' tables for rows whose pass has run, and the contexts under verification."""
    begins, table_begins, past, blocks, contexts = [0], [0], [], [], []
    for rows in batch:
        new, context = len(rows.tokens), rows.sequence.length
        verified = context > new and new <= 64
        contexts.append(context if verified else None)
        past.append(context - new if verified else -1)
        blocks += rows.sequence.table[: -(-context // BLOCK)].tolist() if verified else []
        begins.append(begins[-1] + new)
        table_begins.append(len(blocks))
    values = {
        "subsequence_begins": begins,
        "verify_past_lens": past,
        "verify_block_indices": blocks,
        "verify_block_indices_begins": table_begins,
        "verify_budgets": [rows.budget for rows in batch],
    }
    return {name: np.array(value, np.int32) for name, value in values.items()}, contexts


def passes(runner: ModelRunner, life: list[Step] | None = None) -> Iterator[Pass]:
    """Run the sequences' life pass by pass, and release them in the end."""
    idle, live = CachedSequence(), dict[str, Live]()
    runner.blocks.reserve(idle, IDLE_BLOCKS * BLOCK)
    names = {name for port in runner.compiled.outputs for name in port.get_names() if name != "logits"}
    rng = np.random.default_rng(11)
    for step in life or LIFE:
        for name in [name for name, rows in step.items() if rows is None]:
            runner.release(live.pop(name).cached)
        ones = [(live.setdefault(name, Live()), *rows) for name, rows in step.items() if rows is not None]
        if not ones:
            continue
        batch = [
            Rows(one.cached, rng.integers(2, 4096, count), min(count, 64), budget)
            for one, count, budget, _ in ones
        ]
        logits = np.array(runner.forward(batch))
        seen = {name: np.array(runner._request.get_tensor(name).data) for name in names}
        tables, contexts = tables_of(batch)
        begins = tables["subsequence_begins"]
        for index, (one, count, _, _) in enumerate(ones):
            for layer in range(LAYERS if "key.0" in seen else 0):
                new = seen[f"key.{layer}"][begins[index] : begins[index + 1]].reshape(
                    count, KV_HEADS, HEAD_SIZE
                )
                kept = one.keys.get(layer, new[:0])[: one.cached.length - count]
                one.keys[layer] = np.concatenate([kept, new])
        yield Pass(
            tables,
            seen,
            live,
            contexts,
            runner.last_pass,
            logits,
            lambda name: runner.cache.tensor(name).data,
        )
        for one, _, _, back in ones:
            one.cached.rollback(one.cached.length - back)
    for cached in (idle, *(one.cached for one in live.values())):
        runner.release(cached)


def anchor_of(layer: int, anchors: tuple[int, ...]) -> int:
    """The nearest anchor at or below a layer."""
    return max(anchor for anchor in anchors if anchor <= layer)


@dataclass
class Selecting:
    runner: ModelRunner
    anchors: tuple[int, ...]


@pytest.fixture(scope="module", params=ANCHORS)
def selecting(request: pytest.FixtureRequest, demo_ir: Path) -> Selecting:
    given, expected = ANCHORS[request.param]
    return Selecting(probed_runner(demo_ir, given), expected)


def test_only_the_anchors_select(selecting: Selecting) -> None:
    outputs = {name for port in selecting.runner.compiled.outputs for name in port.get_names()}
    assert {int(name[7:]) for name in outputs if name.startswith("blocks.")} == set(selecting.anchors)


def test_key_summaries_are_the_means_of_the_keys(selecting: Selecting) -> None:
    for number, one_pass in enumerate(passes(selecting.runner)):
        for anchor in selecting.anchors:
            keys, summary = one_pass.cache(f"key_cache.{anchor}"), one_pass.cache(f"key_summary.{anchor}")
            for name, one in one_pass.live.items():
                where = f"pass {number}, layer {anchor}, sequence {name}"
                true = one.keys[anchor]
                table = one.cached.table[: -(-len(true) // BLOCK)]
                cached = keys[table].transpose(0, 2, 1, 3).reshape(-1, KV_HEADS, HEAD_SIZE)[: len(true)]
                np.testing.assert_array_equal(cached, true, err_msg=where)
                means = [
                    true[begin : begin + BLOCK].mean(axis=0, dtype=np.float64)
                    for begin in range(0, len(true), BLOCK)
                ]
                np.testing.assert_allclose(summary[table], means, atol=1e-6, rtol=1e-6, err_msg=where)


def test_anchors_select_what_the_reference_selects(selecting: Selecting) -> None:
    names = (
        "subsequence_begins", "verify_past_lens", "verify_block_indices", "verify_block_indices_begins",
        "verify_budgets",
    )  # fmt: skip
    for number, one_pass in enumerate(passes(selecting.runner)):
        for anchor in selecting.anchors:
            blocks, counts = block_select(
                one_pass.seen[f"query.{anchor}"],
                one_pass.cache(f"key_summary.{anchor}"),
                *[one_pass.tables[name] for name in names],
                kv_heads=KV_HEADS,
                k_size=HEAD_SIZE,
            )
            where = f"pass {number}, layer {anchor}"
            np.testing.assert_array_equal(one_pass.seen[f"counts.{anchor}"], counts, err_msg=where)
            np.testing.assert_array_equal(one_pass.seen[f"blocks.{anchor}"], blocks, err_msg=where)


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
    """The life tells, at every layer, the right list from every other anchor's, the first blocks and all."""
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
            context_tokens += context
        np.testing.assert_array_equal(one_pass.seen["selected_counts"], counts, err_msg=f"pass {number}")
        assert one_pass.stats.attended_tokens == pytest.approx(attended), f"pass {number}"
        assert one_pass.stats.context_tokens == context_tokens, f"pass {number}"
        assert context_tokens == 0 or attended < context_tokens or -1 in one_pass.tables["verify_budgets"]


@pytest.mark.parametrize("selecting", ["default", "apart"], indirect=True)
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
    for probed, bare in zip(passes(probed_runner(demo_ir, None)), passes(plain), strict=True):
        np.testing.assert_allclose(probed.logits, bare.logits, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(probed.seen["selected_counts"], bare.seen["selected_counts"])
