"""The operations behind the plugin's own PagedAttention: it writes the caches, they read."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.stock import StockRunner, combined_model, stock_model, table_inputs
from tiers import by_tier

from ovspec_ops.block_select.reference import block_select
from ovspec_ops.common.cache_layout import decode_block
from ovspec_ops.key_summary.reference import means
from ovspec_ops.verify_attention.reference import softmax

PRECISIONS = {
    "f32": {"KV_CACHE_PRECISION": "f32"},
    "f16": {"KV_CACHE_PRECISION": "f16"},
    "u8-by-token": {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"},
    "u8-by-channel": {"KV_CACHE_PRECISION": "u8"},
}
# Largest difference to attention over the unquantised tokens, on values of magnitude 1.
TOLERANCES = {"f32": 2e-6, "f16": 2e-3, "u8-by-token": 3e-2, "u8-by-channel": 3e-2}
SIZES = {"equal": (4, 2, 64, 64), "odd": (6, 2, 24, 40), "one-to-one": (2, 2, 72, 72)}
BLOCKS = 60

Array = NDArray[np.float32]


@dataclass
class Conversation:
    """Three sequences with the tokens they have seen, so that attention over them can be computed exactly."""

    heads: int
    kv_heads: int
    k_size: int
    v_size: int
    window: int = 0
    seed: int = 11
    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        ids = self.rng.permutation(BLOCKS).tolist()
        for s in range(3):
            self.keys.append(np.zeros((0, self.kv_heads, self.k_size), np.float32))
            self.values.append(np.zeros((0, self.kv_heads, self.v_size), np.float32))
            self.tables.append(ids[s * 20 : s * 20 + 20])

    def step(self, rows: list[int], verified: list[bool]) -> tuple[dict[str, Any], dict[str, Any], Array]:
        """Adds random rows: inputs of the stock graph, of the combined graph, and the exact attention."""
        past = [len(k) for k in self.keys]
        total = sum(rows)
        offset = self.rng.uniform(-1, 1, (self.kv_heads, self.k_size))
        query = self.rng.standard_normal((total, self.heads, self.k_size)).astype(np.float32)
        key = (self.rng.standard_normal((total, self.kv_heads, self.k_size)) + offset).astype(np.float32)
        value = self.rng.standard_normal((total, self.kv_heads, self.v_size)).astype(np.float32)
        begins = np.cumsum([0, *rows]).tolist()
        exact = np.zeros((total, self.heads, self.v_size))
        for s, (first, last) in enumerate(pairwise(begins)):
            self.keys[s] = np.concatenate([self.keys[s], key[first:last]])
            self.values[s] = np.concatenate([self.values[s], value[first:last]])
            for r in range(first, last):
                exact[r] = self._attend(s, query[r], past[s] + r - first)
        flat = {n: x.reshape(total, -1) for n, x in (("query", query), ("key", key), ("value", value))}
        whole, combined = table_inputs(past, rows, self.tables, verified)
        return flat | whole, flat | combined, exact.reshape(total, -1).astype(np.float32)

    def rollback(self, tokens: list[int]) -> None:
        """Forgets the last tokens, as rejected drafts are: the next rows overwrite their slots."""
        for s, count in enumerate(tokens):
            self.keys[s] = self.keys[s][: len(self.keys[s]) - count]
            self.values[s] = self.values[s][: len(self.values[s]) - count]

    def _attend(self, s: int, query: Array, position: int) -> NDArray[np.float64]:
        low = max(0, position - self.window + 1) if self.window else 0
        out = np.zeros((self.heads, self.v_size))
        group = self.heads // self.kv_heads
        for h in range(self.heads):
            key = self.keys[s][low : position + 1, h // group].astype(np.float64)
            scores = key @ query[h].astype(np.float64) * self.k_size**-0.5
            out[h] = softmax(scores) @ self.values[s][low : position + 1, h // group].astype(np.float64)
        return out


PASSES = [
    ([70, 33, 5], [False, False, False], [0, 0, 0]),
    ([1, 8, 2], [True, True, True], [0, 5, 1]),
    ([4, 40, 8], [True, False, True], [3, 0, 0]),
    ([64, 1, 33], [True, True, True], [10, 0, 7]),
    ([2, 3, 60], [True, True, False], [1, 2, 0]),
    ([5, 16, 31], [True, True, True], [0, 0, 0]),
    ([1, 1, 1], [True, True, True], [0, 0, 0]),
]


@pytest.mark.parametrize(
    ("precision", "sizes", "window"),
    by_tier(
        product(PRECISIONS, SIZES.values(), [0, 20, 50]),
        [*zip(PRECISIONS, [*SIZES.values()] * 2, [0, 20, 50, 20], strict=False)],
    ),
)
def test_combined_graph_is_exact_and_no_further_than_stock(
    precision: str, sizes: tuple[int, int, int, int], window: int
) -> None:
    chat = Conversation(*sizes, window)
    stock = StockRunner(stock_model(*sizes, window), BLOCKS, **PRECISIONS[precision])
    ours = StockRunner(combined_model(*sizes, window), BLOCKS, **PRECISIONS[precision])
    for rows, verified, rejected in PASSES:
        whole, combined, exact = chat.step(rows, verified)
        stock_error = float(np.abs(stock(**whole)[0] - exact).max())
        our_error = float(np.abs(ours(**combined)[0] - exact).max())
        assert our_error <= TOLERANCES[precision]
        assert our_error <= stock_error * 1.02 + 1e-6
        chat.rollback(rejected)
    for name, cache in ours.caches.items():
        assert np.array_equal(cache.data.view(np.uint8), stock.caches[name].data.view(np.uint8)), name


@pytest.mark.parametrize(
    ("precision", "sizes"),
    by_tier(
        product(["u8-by-token", "u8-by-channel"], [(4, 2, 64, 64), (2, 2, 128, 96), (6, 1, 80, 80)]),
        [("u8-by-token", (6, 1, 80, 80))],
    ),
)
def test_u8_is_no_further_than_stock_on_every_instruction_set(
    isa: str, precision: str, sizes: tuple[int, int, int, int]
) -> None:
    stock = StockRunner(stock_model(*sizes), BLOCKS, **PRECISIONS[precision])
    ours = StockRunner(combined_model(*sizes), BLOCKS, **PRECISIONS[precision])
    squares = np.zeros(2)
    for seed in range(3):
        chat = Conversation(*sizes, seed=seed)
        for rows, verified in (
            ([400, 90, 200], [False] * 3),
            ([8, 4, 20], [True] * 3),
            ([1, 40, 3], [True] * 3),
        ):
            whole, combined, exact = chat.step(rows, verified)
            errors = [runner(**inputs)[0] - exact for runner, inputs in ((stock, whole), (ours, combined))]
            largest = [float(np.abs(error).max()) for error in errors]
            assert largest[1] <= largest[0] * 1.02 + 1e-6
            squares += [float((error**2).sum()) for error in errors]
    assert squares[1] <= squares[0] * 1.005


@pytest.mark.parametrize("window", [0, 20])
def test_sinks_are_those_of_stock(window: int) -> None:
    sizes = SIZES["equal"]
    sinks = np.array([-1.0, 0.0, 2.5, 6.0], np.float32)
    chat = Conversation(*sizes, window)
    stock = StockRunner(stock_model(*sizes, window, sinks), BLOCKS, **PRECISIONS["f32"])
    ours = StockRunner(combined_model(*sizes, window, sinks), BLOCKS, **PRECISIONS["f32"])
    for rows, verified, rejected in PASSES:
        whole, combined, _ = chat.step(rows, verified)
        assert_close("sinks", stock(**whole)[0], ours(**combined)[0])
        chat.rollback(rejected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cache_written_by_the_plugin_decodes_to_its_tokens(precision: str) -> None:
    chat = Conversation(*SIZES["odd"])
    stock = StockRunner(stock_model(*SIZES["odd"]), BLOCKS, **PRECISIONS[precision])
    for rows in ([70, 33, 5], [3, 1, 40]):
        stock(**chat.step(rows, [False] * 3)[0])
    tolerance = {"f32": 0.0, "f16": 2e-3, "u8-by-token": 2e-2, "u8-by-channel": 3e-2}[precision]
    for s in range(3):
        blocks = chat.tables[s][: -(-len(chat.keys[s]) // 32)]
        for tokens, name in ((chat.keys[s], "key_cache.0"), (chat.values[s], "value_cache.0")):
            got = decode_block(stock.caches[name].data[blocks], tokens.shape[2])
            flat = got.transpose(0, 2, 1, 3).reshape(-1, *tokens.shape[1:])[: len(tokens)]
            assert np.abs(flat - tokens).max() <= tolerance, name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_summaries_and_selection_follow_the_passes(precision: str) -> None:
    sizes = SIZES["odd"]
    chat = Conversation(*sizes)
    ours = StockRunner(combined_model(*sizes, selective=True), BLOCKS, **PRECISIONS[precision])
    dense = StockRunner(combined_model(*sizes), BLOCKS, **PRECISIONS[precision])
    for rows, verified, rejected in PASSES:
        _, inputs, _ = chat.step(rows, verified)
        out, blocks, counts = ours(**inputs, verify_budgets=np.array([99, -1, 99], np.int32))
        assert (counts == -1).all()
        assert (blocks == -1).all()
        assert np.array_equal(out, dense(**inputs)[0])
        summary = ours.caches["key_summary.0"].data
        for s in range(3):
            for begin in range(0, len(chat.keys[s]), 8):
                mean = chat.keys[s][begin : begin + 8].mean(axis=0)
                found = means(summary[chat.tables[s][begin // 32]], chat.k_size)[:, begin % 32 // 8]
                half = 0.51 * (mean.max(axis=1) - mean.min(axis=1)) / 15
                # u8 by channel re-quantises a block with every token: its mean drifts by less than a step.
                assert np.all(np.abs(found - mean).max(axis=1) <= half + TOLERANCES[precision])
        chat.rollback(rejected)
    _, inputs, exact = chat.step([1, 8, 4], [True] * 3)
    budgets = np.array([4, 3, -1], np.int32)
    out, blocks, counts = ours(**inputs, verify_budgets=budgets)
    summary = ours.caches["key_summary.0"].data
    tables = inputs["verify_tables"], budgets
    expected = block_select(inputs["query"], summary, *tables, kv_heads=chat.kv_heads, k_size=chat.k_size)
    assert (counts[:, :2] > 0).all()
    assert np.array_equal(blocks, expected[0])
    assert np.array_equal(counts, expected[1])
    assert_close("dense sequence", exact[9:], out[9:], TOLERANCES[precision] * 2)
