"""CacheWrite against its reference, and against the stock node."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.caches import BLOCK
from ops.passes import compile_op, evaluate, infer, parameters
from ops.properties import examples
from ops.stock import StockRunner, stock_model
from ops.test_stock_graph import PRECISIONS

import ovspec_ops
from ovspec_ops import loader
from ovspec_ops.cache_write.reference import cache_write, rounded

POISON = 0xA5
SIZE = st.integers(1, 9).map(lambda eighths: 8 * eighths) | st.sampled_from([96, 128, 256, 320])
SLOTS = [70, 3, 31, 32, 64, 95, 0]


class Written:
    """Random rows for slots of poisoned caches of three blocks."""

    def __init__(self, slots: list[int], kv_heads: int, k_size: int, v_size: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.slots = np.array(slots, np.int32)
        self.attributes = {"kv_heads": kv_heads, "k_size": k_size, "v_size": v_size}
        offset, spread = rng.uniform(-3, 3), 10 ** rng.uniform(-3, 3)
        self.key, self.value = (
            (spread * rng.standard_normal((len(slots), kv_heads * size)) + offset).astype(np.float32)
            for size in (k_size, v_size)
        )
        self.caches = [np.full((3, kv_heads, BLOCK, size + 8), POISON, np.uint8) for size in (k_size, v_size)]

    @property
    def tensors(self) -> dict[str, ov.Tensor]:
        arrays = [self.key, self.value, *self.caches, self.slots]
        names = ("key", "value", "key_cache", "value_cache", "slot_mapping")
        return {name: ov.Tensor(array, shared_memory=True) for name, array in zip(names, arrays, strict=True)}

    def expected(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        return cache_write(self.key, self.value, self.caches[0], self.caches[1], self.slots)


def assert_written(
    caches: list[NDArray[np.uint8]], expected: tuple[NDArray[np.uint8], ...], exact: bool
) -> None:
    """Without FMA product and sum round twice: a value between two integers may fall to the other."""
    for got, want in zip(caches, expected, strict=True):
        np.testing.assert_array_equal(got[..., :8], want[..., :8])  # scales and zero points
        far = np.abs(got[..., 8:].astype(int) - want[..., 8:]).max()
        assert far <= (0 if exact else 1)


def test_numbers_are_copied(isa: str) -> None:
    """Those that are none too."""
    case = Written(SLOTS, kv_heads=3, k_size=24, v_size=40)
    case.caches = [np.full((3, 3, BLOCK, size), np.nan, np.float32) for size in (24, 40)]
    case.key[1, 5] = np.inf
    expected = case.expected()
    evaluate("CacheWrite", case.tensors, case.attributes)
    for got, want in zip(case.caches, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@examples(20)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.tuples(SIZE, SIZE),
    heads=st.integers(1, 5),
    rows=st.integers(1, 96),
)
def test_rows_in_their_slots(isa: str, seed: int, sizes: tuple[int, int], heads: int, rows: int) -> None:
    """And nothing beside them."""
    case = Written(np.random.default_rng(seed).permutation(96)[:rows].tolist(), heads, *sizes, seed)
    expected = case.expected()
    (found,) = evaluate("CacheWrite", case.tensors, case.attributes)
    assert found.shape == (rows, 0)
    assert_written(case.caches, expected, exact=isa != "plain")


ODD = {
    "alike": [2.5] * 8,
    "zeros": [0.0] * 8,
    "two values": [1.0, -1.0] * 4,
    "close": [1e6, 1e6 + 0.125] * 4,
    "large and alike": [1e11] * 8,
    "minus large and alike": [-1.7e11] * 8,
    "large": [1e30] * 7 + [-1e30],
    "small": [1e-40] * 7 + [3e-39],
}
NO_NUMBERS = {
    "nan": [1.0] * 5 + [np.nan, 1.0, 2.0],
    "first nan": [np.nan] + [1.0] * 7,
    "infinity": [np.inf] + [1.0] * 7,
    "minus infinity": [1.0] * 7 + [-np.inf],
    "range": [3e38] * 7 + [-3e38],
    "zero point": [3e35] * 8,
}


@pytest.mark.parametrize("name", [*ODD, *NO_NUMBERS])
@examples(3)
@given(size=SIZE)
def test_odd_rows(isa: str, name: str, size: int) -> None:
    """A head that is not finite has no number, and the heads beside it have theirs."""
    case = Written(SLOTS, kv_heads=3, k_size=size, v_size=8)
    case.key[2, size : 2 * size] = np.resize((ODD | NO_NUMBERS)[name], size)
    expected = case.expected()
    evaluate("CacheWrite", case.tensors, case.attributes)
    scales = case.caches[0][0, :, SLOTS[2], :4].copy().view(np.float32).ravel()
    assert np.isnan(scales).tolist() == [False, name in NO_NUMBERS, False]
    if name == "close" or "large and" in name:  # its zero point is larger than a float is exact
        np.testing.assert_array_equal(case.caches[0][..., :8], expected[0][..., :8])
    else:
        assert_written(case.caches, expected, exact=isa != "plain")


@pytest.mark.parametrize("sizes", [(4, 2, 64, 64), (6, 2, 24, 40), (2, 2, 72, 128)])
def test_the_plugin_writes_the_same_bytes(sizes: tuple[int, int, int, int]) -> None:
    """From the same numbers, on the processor at hand."""
    heads, kv_heads, k_size, v_size = sizes
    rows, rng = 70, np.random.default_rng(3)
    runner = StockRunner(stock_model(*sizes), 3, **PRECISIONS["u8-by-token"])
    case = Written(list(range(rows)), kv_heads, k_size, v_size)
    runner(
        query=rng.standard_normal((rows, heads * k_size)).astype(np.float32),
        key=case.key,
        value=case.value,
        past_lens=np.array([0], np.int32),
        subsequence_begins=np.array([0, rows], np.int32),
        block_indices=np.arange(3, dtype=np.int32),
        block_indices_begins=np.array([0, 3], np.int32),
        max_context_len=np.array(rows, np.int32),
    )
    evaluate("CacheWrite", case.tensors, case.attributes)
    for ours, name in zip(case.caches, ("key_cache.0", "value_cache.0"), strict=True):
        stock = runner.caches[name].data
        written = np.divmod(np.arange(rows), BLOCK)
        here, theirs = (cache[written[0], :, written[1]] for cache in (ours, stock))
        np.testing.assert_array_equal(here[..., :8], theirs[..., :8])
        assert np.abs(here[..., 8:].astype(int) - theirs[..., 8:]).max() <= 1  # without FMA it rounds twice
        assert (here == theirs).mean() > 0.999


def test_plugin_writes_the_tensor_of_the_request(isa: str) -> None:
    case = Written(SLOTS, kv_heads=3, k_size=40, v_size=24)
    expected = case.expected()
    (found,) = infer(compile_op("CacheWrite", case.tensors, case.attributes), case.tensors)
    assert found.shape == (len(SLOTS), 0)
    assert_written(case.caches, expected, exact=isa != "plain")


@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows_are_shared_among_threads(threads: int) -> None:
    """With the same bytes."""
    rows = 2000
    case = Written([0] * rows, kv_heads=4, k_size=64, v_size=64)
    case.slots = np.random.default_rng(0).permutation(64 * BLOCK)[:rows].astype(np.int32)
    case.caches = [np.full((64, 4, BLOCK, 72), POISON, np.uint8) for _ in range(2)]
    expected = case.expected()
    evaluate("CacheWrite", case.tensors, {**case.attributes, "threads": threads})
    assert_written(case.caches, expected, exact=loader.active_isa() != "plain")


BAD: dict[str, tuple[Any, str]] = {
    "slot": ([70, 3, 96], r"CacheWrite: slot_mapping\[2\] is 96, expected a slot below the 96 of the caches"),
    "negative": ([70, -1, 5], r"CacheWrite: slot_mapping\[1\] is -1, expected a slot below"),
    "few": ([70, 3], r"CacheWrite: slot_mapping holds 2 slots, expected one for each of 3 rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_slots_are_refused_before_anything_is_written(name: str) -> None:
    case = Written([70, 3, 5], kv_heads=2, k_size=16, v_size=16)
    slots, message = BAD[name]
    case.slots = np.array(slots, np.int32)
    with pytest.raises(ValueError, match=message):
        evaluate("CacheWrite", case.tensors, case.attributes)
    assert all((cache == POISON).all() for cache in case.caches)


def test_values_of_other_rows_and_other_caches_are_refused() -> None:
    case = Written([70, 3, 5], kv_heads=2, k_size=16, v_size=16)
    whole = case.tensors
    with pytest.raises(ValueError, match=r"CacheWrite: value holds 2 rows, expected the 3 of key"):
        evaluate("CacheWrite", whole | {"value": ov.Tensor(case.value[:2])}, case.attributes)
    numbers = ov.Tensor(np.zeros((3, 2, BLOCK, 16), np.float16))
    with pytest.raises(ValueError, match=r"CacheWrite: value_cache .* expected u8 by token or f32; let the"):
        evaluate("CacheWrite", whole | {"value_cache": numbers}, case.attributes)
    channels = ov.Tensor(np.zeros((3, 2, BLOCK + 8, 16), np.uint8))
    with pytest.raises(ValueError, match=r"CacheWrite: key_cache .* expected u8 by token"):
        evaluate("CacheWrite", whole | {"key_cache": channels}, case.attributes)
    with pytest.raises(ValueError, match=r"CacheWrite: got 4 inputs, expected 5"):
        ovspec_ops.create("CacheWrite", parameters(whole)[:4], case.attributes)
    with pytest.raises(ValueError, match=r"CacheWrite: attribute v_size is 12, expected a multiple of 8"):
        ovspec_ops.create("CacheWrite", parameters(whole), {**case.attributes, "v_size": 12})


def test_the_reference_keeps_values() -> None:
    """Each within half a step of the scale."""
    rows = np.random.default_rng(0).standard_normal((5, 3, 64)).astype(np.float32)
    found = rounded(rows)
    scale, zero_point = np.moveaxis(found[..., :8].copy().view(np.float32), -1, 0)[..., np.newaxis]
    assert np.abs((found[..., 8:] - zero_point) * scale - rows).max() <= 0.51 * scale.max()
