"""Sparse verification without a native operation: the oracle of its lists, and all passes against it.

The oracle sees only the keys and queries of the layers; summaries, sums over KV heads and lists are its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from passes.selection_life import (
    HEAD_SIZE,
    KV_HEADS,
    LAYERS,
    SCALE,
    TOLERANCE,
    Live,
    Pass,
    passes,
)

from ovspec.operations.attention_config import AttentionConfig
from ovspec.runner.model_runner import ModelRunner
from ovspec_ops.block_select.reference import masses_of, sinks_and_tail
from ovspec_transforms import Selection

ANCHORS = (0, 1, 4)


def stock(*rule: Any) -> AttentionConfig:
    return AttentionConfig("stock", True, ANCHORS, *rule)


RULES: dict[str, AttentionConfig] = {
    "the paper's": stock(Selection("paper")),
    "wide ends": stock(Selection("paper", 2, 3)),
    "coverage": stock(Selection("paper"), 0.6),
    "everything": stock(Selection("paper", 2, 2), 0.8),
}


def anchor_of(layer: int) -> int:
    return max(anchor for anchor in ANCHORS if anchor <= layer)


def mean_keys(one: Live, anchor: int, size: int) -> NDArray[np.float64]:
    """`[blocks, kv_heads, values]` of the keys that the layer saw."""
    keys = one.keys[anchor].astype(np.float64)
    return np.stack([keys[begin : begin + size].mean(axis=0) for begin in range(0, len(keys), size)])


class Oracle:
    """Lists of every sequence and anchor, one for all KV heads."""

    def __init__(self, attention: AttentionConfig) -> None:
        self._rule = attention.selection
        self._coverage = attention.coverage

    def select(self, one_pass: Pass, anchor: int, index: int) -> list[int]:
        """Blocks that the sequence's rows should read, ascending."""
        rule, name = self._rule, one_pass.names[index]
        context, budget = one_pass.contexts[index], int(one_pass.tables["verify_budgets"][index])
        first, last = one_pass.tables["subsequence_begins"][index : index + 2].tolist()
        rows = last - first
        one = one_pass.live[name]
        total = -(-len(one.keys[anchor]) // one_pass.block)
        if context is None or budget < 0 or (budget >= total and self._coverage >= 1):
            return list(range(total))
        past = context - rows
        sinks, tail = sinks_and_tail(past, rows, rule.sink_blocks, rule.local_blocks, one_pass.block)
        always = sinks | tail | one.cached.held_keys.unknown
        scores = self._scores(one_pass, one, anchor, first)
        scores[:, sorted(one.cached.held_keys.unknown)] = np.nan  # kept anyhow, without a share
        scored = -(-past // one_pass.block)
        masses = np.zeros(scores.shape)
        for of_head, mass in zip(scores, masses, strict=True):
            mass[:scored] = np.nan_to_num(masses_of(SCALE * of_head[:scored], past, one_pass.block))
        shares = (masses / masses.sum(axis=1, keepdims=True)).mean(axis=0)
        kept = set(always)
        for block in np.argsort(-scores.sum(axis=0), kind="stable").tolist():
            if len(kept) >= budget or (self._coverage < 1 and shares[sorted(kept)].sum() >= self._coverage):
                break
            kept.add(block)
        return sorted(kept)

    def _scores(self, one_pass: Pass, one: Live, anchor: int, row: int) -> NDArray[np.float64]:
        """`[kv_heads, blocks]`: mean product of the row's query heads with the blocks' mean keys."""
        query = one_pass.seen[f"query.{anchor}"].reshape(-1, KV_HEADS, 2, HEAD_SIZE)[row].mean(axis=1)
        return np.asarray(np.einsum("hd,bhd->hb", query, mean_keys(one, anchor, one_pass.block)))


def lists_read(one_pass: Pass, layer: int, index: int) -> list[int]:
    """Logical blocks that the stock node was given for a sequence, ascending, those that it writes last."""
    begins, table = one_pass.seen[f"begins.{layer}"].astype(int), one_pass.tables["physical_tables"][index]
    context = one_pass.contexts[index]
    first, last = one_pass.tables["subsequence_begins"][index : index + 2].tolist()
    if len(begins) - 1 == len(one_pass.seen["query.0"]):  # every row is a sequence; the last row reads most
        index = last - 1
    physical = one_pass.seen[f"blocks.{layer}"].astype(int)[begins[index] : begins[index + 1]]
    logical = {int(block): number for number, block in enumerate(table)}
    read = [logical[int(block)] for block in physical]
    if context is None:
        return sorted(read)
    written = len(table) - (context - (last - first)) // one_pass.block
    assert read[-written:] == list(range(len(table) - written, len(table)))
    return sorted(read)


def check_life(runner: ModelRunner, attends: bool = True, exp_error: float = 0.0) -> None:
    """Lists, summaries and, where the device's blocks are those of the lists, attention of all passes.

    `exp_error`: of the device's exponential, as a share; a weight and the sum of all have it each.
    """
    attention = runner.attention
    oracle, dropped, unknown = Oracle(attention), 0, 0
    for number, one_pass in enumerate(passes(runner)):
        begins, block = one_pass.tables["subsequence_begins"], one_pass.block
        attended = context_tokens = 0.0
        for index, sequence in enumerate(one_pass.names):
            context = one_pass.contexts[index]
            lists = {anchor: oracle.select(one_pass, anchor, index) for anchor in ANCHORS}
            blocks = -(-len(one_pass.live[sequence].keys[0]) // block)
            for layer in range(LAYERS):
                where = f"pass {number}, layer {layer}, sequence {sequence}"
                kept = lists[anchor_of(layer)]
                assert lists_read(one_pass, layer, index) == kept, where
                dropped += blocks - len(kept)
                if context is None:
                    continue
                if attends:
                    want = attend(one_pass, layer, index, kept)
                    got = one_pass.seen[f"output.{layer}"][begins[index] : begins[index + 1]]
                    largest = np.abs(one_pass.cache(f"value_cache.{layer}")).max() if exp_error else 0.0
                    tolerance = TOLERANCE + 2 * exp_error * largest
                    np.testing.assert_allclose(got, want, atol=tolerance, rtol=0, err_msg=where)
                attended += sum(min(block, context - one * block) for one in kept) / LAYERS
            if context is not None and any(len(kept) < blocks for kept in lists.values()):
                assert runner._selection is not None
                attended += runner._selection.summary_share * blocks * block
            context_tokens += context or 0
        assert one_pass.stats.attended_tokens == pytest.approx(attended), f"pass {number}"
        assert one_pass.stats.context_tokens == context_tokens, f"pass {number}"
        unknown += check_summaries(one_pass)
    assert dropped > 100
    assert unknown, "a rollback longer than what is held ended within a block"


def attend(one_pass: Pass, layer: int, index: int, kept: list[int]) -> NDArray[np.float64]:
    """Attention of a sequence's rows over the tokens of these blocks, from what the layer wrote."""
    first, last = one_pass.tables["subsequence_begins"][index : index + 2].tolist()
    table = one_pass.tables["physical_tables"][index]
    keys, values = (
        one_pass.cache(f"{side}_cache.{layer}")[table].transpose(0, 2, 1, 3).reshape(-1, KV_HEADS, HEAD_SIZE)
        for side in ("key", "value")
    )
    query = one_pass.seen[f"query.{layer}"][first:last].reshape(last - first, KV_HEADS, 2, HEAD_SIZE)
    context = one_pass.contexts[index]
    assert context is not None
    size = one_pass.block
    positions = np.concatenate([np.arange(b * size, min((b + 1) * size, context)) for b in kept])
    out = np.zeros(query.shape)
    for row in range(last - first):
        seen = positions[positions <= context - (last - first) + row]
        logits = np.einsum("hgd,thd->hgt", query[row].astype(np.float64), keys[seen]) * SCALE
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[row] = np.einsum("hgt,thd->hgd", weights, values[seen])
    return out.reshape(last - first, -1)


def check_summaries(one_pass: Pass) -> int:
    """All summaries are those of the keys, except where keys are not known; returns how many those are."""
    unknown = 0
    for name, one in one_pass.live.items():
        known = [
            b for b in range(-(-len(one.keys[0]) // one_pass.block)) if b not in one.cached.held_keys.unknown
        ]
        unknown += len(one.cached.held_keys.unknown)
        kept = one_pass.cache("key_summary.all")[one.cached.table[known]]
        for anchor, got in zip(ANCHORS, np.split(kept, len(ANCHORS), axis=-1), strict=True):
            got = got.reshape(len(known), KV_HEADS, -1)
            want = mean_keys(one, anchor, one_pass.block)[known]
            np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5, err_msg=f"{name}, layer {anchor}")
    return unknown
