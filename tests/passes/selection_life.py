"""Sequences in the demo target, from prefill to rollback; its graph returns inputs and outputs of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from settings import F32, F32_CACHE

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.pass_stats import PassStats
from ovspec.passes.tables import Rows
from ovspec.runner import model_runner
from ovspec.runner.model_runner import ModelRunner
from ovspec_ops.verify_attention import verify_attention
from ovspec_transforms import TransformReport, paged_layers

BLOCK, LAYERS, KV_HEADS, HEAD_SIZE = 32, 6, 2, 64
SCALE = HEAD_SIZE**-0.5
TOLERANCE = 1e-4
QUERY, KEY, BLOCK_INDICES, BLOCK_INDICES_BEGINS = 0, 1, 7, 8  # inputs of PagedAttentionExtension

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
        tables: what the operations are to be given, computed here and not by `ovspec.passes.tables`; as
            `physical_tables` every sequence's own.
        seen: `query.N`, `output.N` of every layer; `blocks.N`, `counts.N` of every anchor; `selected_counts`.
        cache: contents of a cache by its name, blocks of keys as `[kv_heads, tokens, size]`.
        live: all sequences, those that were not in this pass included.
        contexts: per sequence of the pass its tokens after it; `None` for a prefill.
        names: the sequences of the pass.
        block: tokens per block.
    """

    tables: dict[str, Any]
    seen: dict[str, NDArray[np.float32]]
    live: dict[str, Live]
    contexts: list[int | None]
    stats: PassStats
    logits: NDArray[np.float32]
    cache: Callable[[str], NDArray[np.float32]]
    names: list[str]
    block: int = BLOCK

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
        if not counts.size or counts[0, index] < 0:
            return None
        return [[int(block) for block in row if block >= 0] for row in blocks[:, begin:end]]


def probe(model: ov.Model, attends: bool = True) -> None:
    """Let the model return the inputs and outputs of its layers.

    Where a layer's attention cannot be right (`attends=False`), its query stands for what it returns.
    """
    results = []

    def watch(output: ov.Output, name: str) -> None:
        if output.get_node().get_type_name() == "Parameter":  # whose name the host goes by
            output = ops.convert(output, "f32").output(0)
        output.add_names({name})
        results.append(ops.result(output))

    selects = [node for node in model.get_ordered_ops() if node.get_type_name() == "BlockSelect"]
    for layer in paged_layers(model):
        routed = [port.get_node() for port in layer.node.output(0).get_target_inputs()
                  if port.get_node().get_type_name() == "VerifyAttention"]  # fmt: skip
        watch(layer.node.input(QUERY).get_source_output(), f"query.{layer.index}")
        watch(layer.node.input(KEY).get_source_output(), f"key.{layer.index}")
        output = (routed[0] if routed else layer.node).output(0)
        for reader in () if attends else output.get_target_inputs():
            reader.replace_source_output(layer.node.input(QUERY).get_source_output())
        watch(output, f"output.{layer.index}")
        if not routed:
            watch(layer.node.input(BLOCK_INDICES).get_source_output(), f"blocks.{layer.index}")
            watch(layer.node.input(BLOCK_INDICES_BEGINS).get_source_output(), f"begins.{layer.index}")
        for select in selects:
            if f"key_summary.{layer.index}" in select.input(1).get_source_output().get_names():
                watch(select.output(0), f"blocks.{layer.index}")
                watch(select.output(1), f"counts.{layer.index}")
    model.add_results(results)


def probed_runner(
    demo_ir: Path, attention: AttentionConfig, device: str = "CPU", attends: bool = True
) -> ModelRunner:
    """The runner as it is, except that its graph is probed after its own passes."""
    transform = model_runner.transform

    def transform_and_probe(model: ov.Model, *settings: Any) -> list[TransformReport]:
        reports = transform(model, *settings)
        probe(model, attends)
        return reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_runner, "transform", transform_and_probe)
        return ModelRunner(demo_ir, device, attention, F32 if device == "CPU" else F32_CACHE)


def contents(runner: ModelRunner, name: str) -> NDArray[np.float32]:
    """Everything in a float cache; of a device a copy, with keys as a CPU lays them out."""
    if isinstance(runner.cache.tensor(name), ov.Tensor):
        return runner.cache.tensor(name).data
    spec = next(spec for spec in runner.cache.specs if spec.name == name)
    data = runner.cache.read(name, np.arange(runner.blocks.num_blocks)).view(np.float32)
    blocks = data.reshape(-1, *spec.block_shape)
    return blocks.swapaxes(2, 3) if name.startswith("key_cache.") else blocks


def tables_of(batch: list[Rows], block: int) -> tuple[dict[str, Any], list[int | None]]:
    """The operations' tables for rows whose pass has run, and the contexts under verification."""
    begins, table_begins, past, blocks, contexts = [0], [0], [], [], []
    for rows in batch:
        new, context = len(rows.tokens), rows.sequence.length
        verified = context > new and new <= 64
        contexts.append(context if verified else None)
        past.append(context - new if verified else -1)
        blocks += rows.sequence.table[: -(-context // block)].tolist()
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
    idle, live, block = CachedSequence(), dict[str, Live](), runner.block_size
    runner.blocks.reserve(idle, IDLE_BLOCKS * block)
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
        result = runner.forward(batch)
        logits = result.logits.copy()
        seen = {name: np.array(runner.request.get_tensor(name).data) for name in names}
        tables, contexts = tables_of(batch, block)
        tables["physical_tables"] = [one.cached.table[: -(-one.cached.length // block)] for one, *_ in ones]
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
            result.stats,
            logits,
            partial(contents, runner),
            [name for name, rows in step.items() if rows is not None],
            block,
        )
        for one, _, _, back in ones:
            one.cached.rollback(one.cached.length - back)
    for cached in (idle, *(one.cached for one in live.values())):
        runner.release(cached)
