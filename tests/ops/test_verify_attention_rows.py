"""A row's attention is the same to the last bit, whatever other rows are in the call."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.caches import BLOCK
from ops.passes import OpsPass, attend, attention_tensors, compile_op, infer, random_parents
from ops.properties import examples
from tiers import by_tier

FORMATS = ("f32", "f16", "bf16", "u8_token", "u8_channel")
MOVABLE = FORMATS[:-1]  # by channel, a block's scales follow all of its tokens
SHAPE = st.sampled_from(
    [
        {"group": 2, "k_size": 64, "v_size": 64},
        {"group": 1, "k_size": 24, "v_size": 72, "window": 70, "sinks": True},
        {"group": 3, "k_size": 40, "v_size": 24},
        {"group": 8, "k_size": 128, "v_size": 128, "kv_heads": 1},
    ]
)
PAST = st.integers(0, 70) | st.sampled_from([500, 505, 1000])


def some_rows(whole: OpsPass, past: int, rows: list[int]) -> OpsPass:
    """The same cache, and only the rows after the first `past` tokens, which are in the cache."""
    same = ("sequences", "kv_heads", "group", "k_size", "v_size", "fmt", "seed", "window", "sinks")
    part = OpsPass(**{name: getattr(whole, name) for name in same})
    part.inputs |= whole.inputs
    for name in ("query", "attention"):
        part.inputs[name] = whole.inputs[name][rows]
    part.inputs["subsequence_begins"] = np.array([0, len(rows)], np.int32)
    part.inputs["verify_past_lens"] = np.array([past], np.int32)
    part.inputs["verify_parents"] = np.zeros(0, np.int32)
    return part


def assert_bits(name: str, expected: NDArray[np.float32], got: NDArray[np.float32]) -> None:
    rows = np.flatnonzero((expected.view(np.uint32) != got.view(np.uint32)).any(axis=1))
    assert not rows.size, f"{name}: rows {rows.tolist()} differ, by up to {np.abs(expected - got).max():.2g}"


@pytest.mark.parametrize("fmt", FORMATS)
@examples(4)
@given(SHAPE, PAST, st.lists(st.sampled_from([1, 2, 3, 4, 5, 9, 17, 65]), min_size=2, max_size=6))
def test_any_number_of_rows(isa: str, fmt: str, shape: dict[str, Any], past: int, sizes: list[int]) -> None:
    whole = OpsPass([(past, sum(sizes), True)], fmt=fmt, **shape)
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [attend(some_rows(whole, past + first, [*range(first, end)])) for first, end in pairwise(ends)]
    assert_bits(f"{sizes} rows behind {past}", attend(whole), np.concatenate(parts))


def _move_rows(case: OpsPass, past: int, slots: list[int]) -> dict[str, NDArray[Any]]:
    """Caches in which row i of a chain lies in slot past + slots[i], as a tree writes it."""
    moved = {name: case.inputs[name].copy() for name in ("key_cache", "value_cache")}
    table = case.inputs["verify_block_indices"]
    for name, cache in moved.items():
        source = case.inputs[name]
        for row, slot in enumerate(slots):
            (from_block, from_slot), (to_block, to_slot) = (
                divmod(past + row, BLOCK),
                divmod(past + slot, BLOCK),
            )
            cache[table[to_block], :, to_slot] = source[table[from_block], :, from_slot]
    return moved


@pytest.mark.parametrize("fmt", MOVABLE)
@examples(6)
@given(SHAPE, PAST, st.integers(2, 12) | st.integers(13, 64), st.integers(0, 2**31))
def test_a_path_of_a_tree_is_its_chain(
    isa: str, fmt: str, shape: dict[str, Any], past: int, nodes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    path = sorted(rng.choice(nodes, max(2, nodes // 2), replace=False).tolist())
    path[-1] = nodes - 1  # so that the chain's cache is as long as the tree's
    chain = OpsPass([(past, nodes, True)], fmt=fmt, **shape)
    parents = np.array(random_parents(rng, nodes), np.int32)
    parents[path] = [-1, *path[:-1]]
    tree = some_rows(chain, past, list(range(nodes)))
    tree.inputs["verify_parents"] = parents
    tree.inputs |= _move_rows(chain, past, path)
    # Slots that are not on the path hold other tokens: any values.
    query = rng.standard_normal(chain.inputs["query"].shape).astype(np.float32)
    query[path] = chain.inputs["query"][: len(path)]
    tree.inputs["query"] = query
    alone = some_rows(chain, past, list(range(len(path))))
    assert_bits(f"path {path}", attend(alone), attend(tree)[path])


@pytest.mark.parametrize("fmt", FORMATS)
@examples(4)
@given(
    SHAPE.map(lambda shape: {**shape, "window": 0}),
    PAST,
    st.sampled_from([1, 2, 5, 17, 70]),
    st.sampled_from([0, 1, 5, 32, 100, 2**31 - 1]),
    st.booleans(),
)
def test_rows_of_a_block_are_rows_alone(
    isa: str, fmt: str, shape: dict[str, Any], past: int, rows: int, window: int, causal: bool
) -> None:
    """Each behind all tokens that it sees, with a window that reaches as far back."""
    block = OpsPass([(past, rows, True)], fmt=fmt, past_window=window, causal=causal, **shape)
    got = attend(block)
    for row in range(rows):
        before = past + (row if causal else rows - 1)
        alone = some_rows(block, before, [row])
        alone.window = min(window + before - past + 1, 2**31 - 1) if window else 0
        assert_bits(f"row {row} of {rows} behind {past}, window {window}", attend(alone), got[row : row + 1])


@pytest.mark.parametrize("fmt", by_tier(FORMATS, ("bf16", "u8_token")))
def test_other_sequences_and_threads(isa: str, fmt: str) -> None:
    sequences = [(70, 5, True), (0, 90, True), (900, 1, True), (31, 64, True), (3000, 2, True)]
    whole = OpsPass(sequences, fmt=fmt, k_size=64, v_size=64)
    tensors = attention_tensors(whole)
    outputs = [attend(whole)]
    for threads in (1, 2):
        compiled = compile_op("VerifyAttention", tensors, whole.attributes, INFERENCE_NUM_THREADS=threads)
        outputs.append(infer(compiled, tensors)[0])
    for other in outputs[1:]:
        assert_bits("threads", outputs[0], other)
    begins = whole.inputs["subsequence_begins"]
    for s, (past, rows, _) in enumerate(sequences):
        alone = some_rows(whole, past, list(range(begins[s], begins[s + 1])))
        first, last = whole.inputs["verify_block_indices_begins"][s : s + 2]
        alone.inputs["verify_block_indices"] = whole.inputs["verify_block_indices"][first:last]
        alone.inputs["verify_block_indices_begins"] = np.array([0, last - first], np.int32)
        assert_bits(f"sequence {s}", attend(alone), outputs[0][begins[s] : begins[s] + rows])


@pytest.mark.parametrize("fmt", FORMATS)
@examples(4)
@given(st.integers(3, 40))
def test_the_first_rows_of_a_tree(isa: str, fmt: str, rows: int) -> None:
    """Also where a row is the first of a block, so that the rows before it do not read that block."""
    whole = OpsPass([(62, rows, True)], group=1, fmt=fmt)
    parents = np.array(random_parents(np.random.default_rng(rows), rows), np.int32)
    parents[1] = -1
    whole.inputs["verify_parents"] = parents
    for first in (2, rows - 1):
        part = some_rows(whole, 62, list(range(first)))
        part.inputs["verify_parents"] = parents[:first]
        assert_bits(f"the first {first} of {rows} rows", attend(part), attend(whole)[:first])
