"""Linear against its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.compare import ROUNDED_TOLERANCE, ROUNDS, assert_close
from ops.passes import compile_op, evaluate, infer
from tiers import by_tier

import ovspec_ops
from ovspec_ops import loader
from ovspec_ops.linear.layout import (
    MOST_INPUTS,
    NUMBERS,
    bf16_bits,
    bf16_values,
    pack_linear,
    unpack_linear,
    unpack_numbers,
)
from ovspec_ops.linear.reference import linear

TOPS = {"u8": 256, "u4": 16}
INTEGERS = (("u8", 1), ("u8", 4), ("u8", 16), ("u4", 4), ("u4", 8))
# Format, groups of 256 inputs and row bits of every arithmetic.
FORMS = [
    *((fmt, groups, bits) for fmt, groups in INTEGERS for bits in (8, 16, 32)),
    *((fmt, 1, 32) for fmt in NUMBERS),
    ("bf16", 1, 16),
]
ONE_GROUP = [form for form in FORMS if form[1] == 1]
# Every format and every number of row bits; the rest of FORMS differs in groups.
SOME_FORMS = [*ONE_GROUP, ("u8", 16, 8), ("u4", 8, 8), ("u4", 4, 16), ("u4", 8, 32)]
some_forms = pytest.mark.parametrize(("fmt", "groups", "row_bits"), SOME_FORMS)
both_roundings = pytest.mark.parametrize("row_bits", [16, 8])


def rounds(row_bits: int) -> bool:
    """Whether rows become integers of 8 bits."""
    return row_bits == 8 and loader.active_isa() in ROUNDS


def tolerance(row_bits: int = 16, fmt: str = "u8") -> float:
    """Rows of 16 bits where the instruction set has products of integers (bf16: 3e-3), else f32 sums."""
    if fmt in NUMBERS or row_bits == 32:
        return 2e-6
    if rounds(row_bits):
        return ROUNDED_TOLERANCE
    return 2e-4 if loader.active_isa().endswith(("amx", "vnni", "dot", "tiles")) else 1e-5


@dataclass
class Layers:
    """Linear layers that share their rows; every one has panels of its own."""

    inputs: int
    sizes: Sequence[int]
    fmt: str = "u8"
    groups: int = 1
    row_bits: int = 16
    seed: int = 0
    zero_point: int | None = None  # of all integers; None: at random

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        if self.fmt in NUMBERS:
            shapes = [(size, self.inputs) for size in self.sizes]
            numbers = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
            self.packed = np.concatenate([pack_linear(n, fmt=self.fmt) for n in numbers])
            return
        parts, top = [], TOPS[self.fmt]
        for size in self.sizes:
            values = rng.integers(0, top, (size, self.inputs), dtype=np.uint8)
            zero_points = rng.integers(0, top, (size, self.groups), dtype=np.uint8)
            if self.zero_point is not None:
                zero_points[...] = self.zero_point
            scales = (rng.uniform(0.5, 1.5, (size, self.groups)) / (top * self.inputs**0.5)).astype(
                np.float16
            )
            parts.append(pack_linear(values, scales, zero_points, self.fmt))
        self.packed = np.concatenate(parts)

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "format": self.fmt,
            "groups": self.groups,
            "sizes": list(self.sizes),
            "row_bits": self.row_bits,
        }

    def rows(self, count: int, seed: int = 1) -> NDArray[np.float32]:
        return np.random.default_rng(seed).standard_normal((count, self.inputs)).astype(np.float32)

    def tensors(self, hidden: NDArray[np.float32]) -> dict[str, ov.Tensor]:
        return {"hidden": ov.Tensor(hidden), "weights": ov.Tensor(self.packed)}

    def run(self, hidden: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        return evaluate("Linear", self.tensors(hidden), self.attributes)


def reference(layers: Layers, rows: NDArray[np.float32]) -> list[NDArray[np.float64]]:
    """With rows rounded as the instruction set in use rounds them."""
    byte_rows, bf16_rows = rounds(layers.row_bits), layers.row_bits == 16 and layers.fmt == "bf16"
    return linear(rows, layers.packed, layers.sizes, layers.fmt, layers.groups, byte_rows, bf16_rows)


def check(layers: Layers, hidden: NDArray[np.float32] | int) -> list[NDArray[np.float32]]:
    rows = layers.rows(hidden) if isinstance(hidden, int) else hidden
    got = layers.run(rows)
    for size, want, have in zip(layers.sizes, reference(layers, rows), got, strict=True):
        assert have.shape == (*rows.shape[:-1], size)
        assert_close(f"output of {size}", want, have, tolerance(layers.row_bits, layers.fmt))
    return got


@some_forms
@pytest.mark.parametrize(
    "sizes", by_tier([[7 * 32 - 5], [17 * 32], [26 * 32 - 1], [500, 3, 550]], [[500, 3, 550]])
)
def test_one_row_takes_several_panels(
    isa: str, fmt: str, groups: int, row_bits: int, sizes: list[int]
) -> None:
    """Of 7, 17, 26 and 35 panels, threads take up to four together. The bits are those beside other rows."""
    layers = Layers(600 if groups == 1 else 256, sizes, fmt, groups, row_bits)
    rows = layers.rows(3)
    for alone, among in zip(check(layers, rows[:1]), check(layers, rows), strict=True):
        assert np.array_equal(alone, among[:1])


def test_more_dimensions(isa: str) -> None:
    layers = Layers(64, (20,))
    check(layers, layers.rows(6).reshape(2, 3, 64))


@some_forms
def test_a_row_does_not_depend_on_the_others(isa: str, fmt: str, groups: int, row_bits: int) -> None:
    """Bit-identical for any number of other rows: more than a block, a round of 256, a wave of 1,024."""
    layers = Layers(256, (48, 32), fmt, groups, row_bits)
    hidden = layers.rows(1300)
    together = layers.run(hidden)
    counts = (1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 17, 20, 64, 100, 300)
    for rows in (*map(slice, counts), slice(250, 263), slice(760, 1030), slice(1020, 1300)):
        for all_rows, some in zip(together, layers.run(hidden[rows]), strict=True):
            np.testing.assert_array_equal(some, all_rows[rows])


@pytest.mark.parametrize("fmt", ["u4", "u8"])
@pytest.mark.parametrize(("inputs", "groups"), [(96, 3), (288, 3), (160, 5)])
def test_groups_of_half_tiles(isa: str, fmt: str, inputs: int, groups: int) -> None:
    """Of 32, 96 and 32 inputs, an odd number of groups: the last tile of digits is half full."""
    layers = Layers(inputs, (70, 32), fmt, groups)
    hidden = layers.rows(300)
    together = check(layers, hidden)
    for rows in (slice(1), slice(5, 14), slice(40, 60), slice(255, 300)):
        for all_rows, some in zip(together, layers.run(hidden[rows]), strict=True):
            np.testing.assert_array_equal(some, all_rows[rows])


@pytest.mark.parametrize("seed", by_tier(range(6), (0, 1)))
def test_any_split_of_the_rows_gives_the_same_bits(isa: str, seed: int) -> None:
    """Shapes, formats and splits at random; prompts of up to 700 rows beside passes of few."""
    rng = np.random.default_rng(seed)
    fmt, groups, row_bits = FORMS[rng.integers(len(FORMS))]
    inputs = 8 * groups * int(rng.integers(1, 60)) if groups > 1 else int(rng.integers(1, 900))
    sizes = tuple(int(size) for size in rng.integers(1, 150, rng.integers(1, 4)))
    layers = Layers(inputs, sizes, fmt, groups, row_bits, seed)
    hidden = layers.rows(int(rng.integers(300, 700)), seed)
    order = rng.permutation(len(hidden))
    together = layers.run(hidden)
    first = 0
    while first < len(hidden):
        count = int(rng.choice([1, 2, 4, 5, 8, 11, 16, 40, 64, 100, 260]))
        some = order[first : first + count]
        first += count
        for all_rows, part in zip(together, layers.run(hidden[some]), strict=True):
            np.testing.assert_array_equal(part, all_rows[some])


def test_pairs_of_bf16_have_the_same_bits_with_and_without_their_instruction(isa: str) -> None:
    """VDPBF16PS adds the second product of a pair first, and rounds each sum, as multiply-adds do."""
    layers = Layers(600, (40,), "bf16", row_bits=16)
    hidden = layers.rows(9)
    before = loader.active_isa()
    if before == "plain":
        pytest.skip("has no fused multiply-add")
    (got,) = layers.run(hidden)
    loader.set_isa("avx2")
    (emulated,) = layers.run(hidden)
    loader.set_isa(before)
    np.testing.assert_array_equal(got, emulated)


def test_no_rows(isa: str) -> None:
    layers = Layers(64, (40,))
    (got,) = layers.run(np.zeros((0, 64), np.float32))
    assert got.shape == (0, 40)


@both_roundings
def test_most_inputs(isa: str, row_bits: int) -> None:
    """Sums of digits reach their largest values, and not beyond 32 bits."""
    ones = np.ones((1, MOST_INPUTS), np.float16)
    packed = pack_linear(
        np.full((1, MOST_INPUTS), 255, np.uint8), ones[:, :1] / 4096, np.zeros((1, 1), np.uint8), "u8"
    )
    layers = Layers(8, (1,), row_bits=row_bits)
    layers.inputs, layers.packed = MOST_INPUTS, packed
    for sign in (1.0, -1.0):
        check(layers, np.full((3, MOST_INPUTS), sign, np.float32))


def test_outliers(isa: str) -> None:
    """A row whose largest value is some 300 times the others loses less than it would in bf16."""
    layers = Layers(512, (64,))
    hidden = layers.rows(4)
    hidden[:, 7] *= 300
    (expected,) = linear(hidden, layers.packed, layers.sizes, "u8", 1)
    halves = (hidden.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)  # rows in bf16
    (rounded,) = linear(halves, layers.packed, layers.sizes, "u8", 1)
    (got,) = layers.run(hidden)
    assert np.abs(got - expected).max() < 0.3 * np.abs(rounded - expected).max()


@pytest.mark.parametrize(("fmt", "groups", "row_bits"), ONE_GROUP)
def test_rows_of_zeros_and_not_finite(isa: str, fmt: str, groups: int, row_bits: int) -> None:
    layers = Layers(128, (32,), fmt, groups, row_bits)
    hidden = layers.rows(4)
    hidden[0], hidden[1, 3], hidden[2, 5] = 0.0, np.inf, np.nan
    (got,) = layers.run(hidden)
    assert not got[0].any()
    assert not np.isfinite(got[1:3]).any()
    np.testing.assert_array_equal(got[3], layers.run(hidden[3:])[0][0])


@pytest.mark.parametrize(("fmt", "groups", "row_bits"), [*ONE_GROUP, ("u4", 1, 8)])
def test_reads_no_byte_beyond_its_inputs(isa: str, fmt: str, groups: int, row_bits: int) -> None:
    """What surrounds rows and results in memory is poisoned, and stays so."""
    layers = Layers(72, (21,), fmt, groups, row_bits)
    memory = np.full((7, 72), np.nan, np.float32)
    memory[1:6] = layers.rows(5)
    check(layers, memory[1:6].copy())
    node = ovspec_ops.create(
        "Linear",
        [
            ov.op.Parameter(t.element_type, ov.PartialShape([-1, -1]))
            for t in layers.tensors(memory[:1]).values()
        ],
        layers.attributes,
    )
    result = np.full((7, 21), 7.0, np.float32)
    assert node.evaluate(
        [ov.Tensor(result[1:6], shared_memory=True)],
        [ov.Tensor(memory[1:6], shared_memory=True), ov.Tensor(layers.packed)],
    )
    assert (result[[0, 6]] == 7.0).all()
    assert np.isfinite(result[1:6]).all()


def test_in_a_compiled_graph(isa: str) -> None:
    layers = Layers(128, (48, 16), "u4", 2)
    hidden = layers.rows(9)
    compiled = compile_op("Linear", layers.tensors(hidden), layers.attributes)
    expected = linear(hidden, layers.packed, layers.sizes, "u4", 2)
    for want, have in zip(expected, infer(compiled, layers.tensors(hidden)), strict=True):
        assert_close("output", want, have, tolerance())


@pytest.mark.parametrize(("fmt", "groups", "row_bits"), ONE_GROUP)
@pytest.mark.parametrize("threads", [1, 2, 3, 8, 32])
def test_any_number_of_threads(threads: int, fmt: str, groups: int, row_bits: int) -> None:
    layers = Layers(512, (700,), fmt, groups, row_bits)
    hidden = layers.rows(8)
    compiled = compile_op("Linear", layers.tensors(hidden), layers.attributes, INFERENCE_NUM_THREADS=threads)
    np.testing.assert_array_equal(infer(compiled, layers.tensors(hidden))[0], layers.run(hidden)[0])


@pytest.mark.parametrize(("fmt", "groups"), [("u8", 1), ("u4", 1), ("u4", 5)])
def test_layout_is_invertible(fmt: str, groups: int) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, TOPS[fmt], (37, 200), dtype=np.uint8)
    zero_points = rng.integers(0, TOPS[fmt], (37, groups), dtype=np.uint8)
    scales = rng.standard_normal((37, groups)).astype(np.float16)
    back = unpack_linear(pack_linear(values, scales, zero_points, fmt), 37, 200, groups, fmt)
    for was, now in zip((values, scales, zero_points), back, strict=True):
        np.testing.assert_array_equal(now, was)


@pytest.mark.parametrize("fmt", NUMBERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_layout_of_numbers_is_invertible(fmt: str, dtype: type) -> None:
    values = np.random.default_rng(3).standard_normal((37, 201)).astype(dtype)
    rounded = {"f32": np.float32, "f16": np.float16}
    expected = bf16_values(bf16_bits(values)) if fmt == "bf16" else values.astype(rounded[fmt])
    np.testing.assert_array_equal(unpack_numbers(pack_linear(values, fmt=fmt), 37, 201, fmt), expected)


def test_bf16_is_rounded_to_the_nearest() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.0, np.inf, np.nan], np.float32)
    expected = np.array([1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -3.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(bf16_values(bf16_bits(values)), expected)


def test_f16_and_f32_of_one_number_have_the_same_bits_in_bf16() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    for values in (every, every.T):
        np.testing.assert_array_equal(bf16_bits(values), bf16_bits(values.astype(np.float32)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "f64"}, "attribute format is 'f64', expected one of u8, u4, f32, f16, bf16"),
        ({"format": "f16", "row_bits": 16}, "attribute row_bits is 16, expected 32"),
        ({"format": "bf16", "row_bits": 8}, "attribute row_bits is 8, expected 32 or 16"),
        ({"groups": 3}, "attribute groups is 3 for rows of 128 values in u8"),
        ({"groups": 0}, "attribute groups is 0"),
        ({"row_bits": 4}, "attribute row_bits is 4, expected 32, 16 or 8"),
        ({"sizes": []}, "attribute sizes holds 0 sizes, expected 1 to 16"),
        ({"sizes": [16] * 17}, "attribute sizes holds 17 sizes"),
        ({"sizes": [0]}, "attribute sizes holds 0"),
        ({"sizes": [80]}, "weights"),
        ({"format": "u4", "groups": 1 << 61}, "attribute groups is 2305843009213693952"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    layers = Layers(128, (48,))
    shapes = [ov.PartialShape([-1, 128]), ov.PartialShape(list(layers.packed.shape))]
    nodes = [ov.op.Parameter(t, s) for t, s in zip((ov.Type.f32, ov.Type.u8), shapes, strict=True)]
    with pytest.raises(ValueError, match=message):
        ovspec_ops.create("Linear", nodes, layers.attributes | change)


def test_weights_that_do_not_fit_are_refused_at_run_time() -> None:
    layers = Layers(128, (48,))
    with pytest.raises(ValueError, match="expected 2 panels of"):
        evaluate(
            "Linear",
            {"hidden": ov.Tensor(layers.rows(2)), "weights": ov.Tensor(layers.packed[:1])},
            layers.attributes,
        )
