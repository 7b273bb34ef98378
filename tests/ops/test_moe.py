"""SparseMoE against its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.experts import FORMATS, Experts, projection, route
from ops.passes import evaluate

from ovspec_ops.moe.reference import dequantise, sparse_moe

NAMES = [f"{part}_{what}" for part in ("gate", "up", "down") for what in ("data", "scales", "zero_points")]
# 16 bits of activations beside f32 accumulation; bf16 would be off by some 3e-3.
TOLERANCE = 2e-4


def tensors_of(
    hidden: NDArray[np.float32], indices: NDArray[np.int32], weights: NDArray[np.float32], experts: Experts
) -> dict[str, ov.Tensor]:
    arrays: list[NDArray[Any]] = [hidden, indices, weights, *experts.tensors]
    return {
        name: ov.Tensor(np.ascontiguousarray(array))
        for name, array in zip(["hidden", "indices", "weights", *NAMES], arrays, strict=True)
    }


def check(
    experts: Experts,
    indices: NDArray[np.int32],
    weights: NDArray[np.float32],
    hidden: NDArray[np.float32] | None = None,
    tolerance: float = TOLERANCE,
) -> NDArray[np.float32]:
    if hidden is None:
        rng = np.random.default_rng(1)
        hidden = rng.standard_normal((len(indices), experts.hidden)).astype(np.float32)
    output, count = sparse_moe(hidden, indices, weights, *experts.values)
    got, read = evaluate("SparseMoE", tensors_of(hidden, indices, weights, experts), {})
    assert_close("output", output, got, tolerance)
    assert read.tolist() == [count]
    return np.asarray(got)


@pytest.mark.parametrize("fmt", FORMATS)
def test_clamped_gates_and_biases(isa: str, fmt: str) -> None:
    """GPT-OSS's: some gates and ups lie beyond the limit on either side."""
    experts, rng = Experts(5, 130, 70, fmt), np.random.default_rng(3)
    hidden = rng.standard_normal((7, 130)).astype(np.float32)
    routing = route(rng, 7, 3, 5)
    biases = tuple(rng.standard_normal(values.shape[:2]).astype(np.float32) for values in experts.values)
    options = {"limit": 0.9, "alpha": 1.702}
    clamped, wide = (
        sparse_moe(hidden, *routing, *experts.values, biases=biases, limit=limit, alpha=options["alpha"])[0]
        for limit in (options["limit"], 9.0)
    )
    assert np.abs(clamped - wide).max() > 0.1
    tensors = tensors_of(hidden, *routing, experts)
    tensors |= {name: ov.Tensor(bias) for name, bias in zip(("12", "13", "14"), biases, strict=True)}
    got, _ = evaluate("SparseMoE", tensors, options)
    assert_close("output", clamped, got, TOLERANCE)


def test_bad_biases_are_refused() -> None:
    experts = Experts(3, 64, 32, "f32")
    routing = route(np.random.default_rng(1), 2, 2, 3)
    tensors = tensors_of(np.zeros((2, 64), np.float32), *routing, experts)
    tensors |= {name: ov.Tensor(np.zeros((3, 31), np.float32)) for name in ("12", "13", "14")}
    with pytest.raises(ValueError, match="gate bias"):
        evaluate("SparseMoE", tensors, {"limit": 1.0})
    with pytest.raises(ValueError, match="limit is -1"):
        evaluate("SparseMoE", tensors_of(np.zeros((2, 64), np.float32), *routing, experts), {"limit": -1.0})
    with pytest.raises(ValueError, match="attribute alpha is nan"):
        evaluate("SparseMoE", tensors_of(np.zeros((2, 64), np.float32), *routing, experts), {"alpha": np.nan})


@pytest.mark.parametrize("part", ["gate_scales", "down_zero_points"])
def test_scales_of_another_type_are_refused(part: str) -> None:
    experts = Experts(3, 64, 32, "int8")
    routing = route(np.random.default_rng(1), 2, 2, 3)
    tensors = tensors_of(np.zeros((2, 64), np.float32), *routing, experts)
    tensors[part] = ov.Tensor(ov.Type.u4, tensors[part].shape)
    with pytest.raises(ValueError, match=r"SparseMoE: (scales|zero points) .* of type u4, expected u8"):
        evaluate("SparseMoE", tensors, {})


@pytest.mark.parametrize(("hidden", "inner"), [(0, 32), (64, 0)])
def test_nothing_to_multiply_is_refused(hidden: int, inner: int) -> None:
    experts = {"gate": (3, inner, hidden), "up": (3, inner, hidden), "down": (3, hidden, inner)}
    tensors = {
        "hidden": np.zeros((2, hidden), np.float32),
        "indices": np.zeros((2, 1), np.int32),
        "weights": np.ones((2, 1), np.float32),
    }
    for name, shape in experts.items():
        tensors[name] = np.zeros(shape, np.float32)
        tensors[f"{name}_scales"] = tensors[f"{name}_zero_points"] = np.zeros(0, np.uint8)
    with pytest.raises(ValueError, match=r"SparseMoE: gate weights are of shape .* at least 1 value"):
        evaluate("SparseMoE", {name: ov.Tensor(array) for name, array in tensors.items()}, {})


def test_formats_may_differ_between_projections(isa: str) -> None:
    experts, rng = Experts(4, 128, 96, "int4", (4, 3)), np.random.default_rng(5)
    experts.up = projection(rng, 4, 96, 128, "int8")
    experts.down = projection(rng, 4, 128, 96, "f32")
    check(experts, *route(rng, 6, 2, 4))


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_all_to_one_expert_or_each_to_its_own(isa: str, fmt: str) -> None:
    experts = Experts(16, 64, 48, fmt)
    ones = np.ones((16, 1), np.float32)
    check(experts, np.full((16, 1), 11, np.int32), ones)
    check(experts, np.arange(16, dtype=np.int32)[::-1, None].copy(), ones)


def test_dropped_pairs_are_not_computed(isa: str) -> None:
    experts = Experts(6, 64, 32, "int8")
    indices, weights = route(np.random.default_rng(2), 8, 4, 6)
    indices[np.random.default_rng(3).random(indices.shape) < 0.5] = -1
    indices[5] = -1
    weights[indices < 0] = np.nan
    got = check(experts, indices, weights)
    assert not got[5].any()


def test_an_expert_twice_in_a_row(isa: str) -> None:
    check(
        Experts(3, 32, 32, "int8"), np.array([[1, 1, 2]], np.int32), np.array([[0.5, 0.3, 0.2]], np.float32)
    )


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_but_chosen_experts_is_read(isa: str, fmt: str) -> None:
    experts = Experts(6, 96, 40, fmt)
    indices, weights = route(np.random.default_rng(4), 5, 2, 2)
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal((5, 96)).astype(np.float32)
    output, _ = sparse_moe(hidden, indices, weights, *experts.values)
    for tensor in experts.tensors:
        if tensor.size:
            tensor.view(np.uint8)[2:] = 0xFF  # NaN in every format that has one
    got, _ = evaluate("SparseMoE", tensors_of(hidden, indices, weights, experts), {})
    assert_close("output", output, got, TOLERANCE)


def test_scales_of_other_rows(isa: str) -> None:
    """Rows share tiles; each keeps a scale of its own, from tiny to huge, zero included."""
    experts = Experts(2, 128, 64, "int8")
    hidden = np.random.default_rng(0).standard_normal((9, 128)).astype(np.float32)
    hidden *= np.array([1e-6, 1e4, 1, 0, 1e-30, 1e2, 1, 1e-3, 7], np.float32)[:, None]
    indices = np.zeros((9, 1), np.int32)
    weights = np.ones((9, 1), np.float32)
    expected, _ = sparse_moe(hidden, indices, weights, *experts.values)
    got, _ = evaluate("SparseMoE", tensors_of(hidden, indices, weights, experts), {})
    for row in (0, 1, 2, 3, 5, 6, 7, 8):
        assert_close(f"row {row}", expected[row], got[row], TOLERANCE)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_stays_so_alone(isa: str, fmt: str, value: float) -> None:
    experts = Experts(2, 64, 64, fmt)
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((4, 64)).astype(np.float32)
    hidden[2, 5] = value
    indices, weights = route(rng, 4, 2, 2)
    got, _ = evaluate("SparseMoE", tensors_of(hidden, indices, weights, experts), {})
    assert not np.isfinite(got[2]).any()
    assert np.isfinite(got[[0, 1, 3]]).all()


def test_no_rows(isa: str) -> None:
    check(Experts(3, 32, 32, "int8"), np.zeros((0, 2), np.int32), np.zeros((0, 2), np.float32))


def test_errors_are_no_further_than_bf16(isa: str) -> None:
    """Outliers included, which is where one scale per row is worst."""
    experts = Experts(4, 1024, 384, "int8")
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((8, 1024)).astype(np.float32)
    hidden[:, 17] *= 300
    indices, weights = route(rng, 8, 2, 4)
    expected, _ = sparse_moe(hidden, indices, weights, *experts.values)
    rounded = ((hidden.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    in_bf16, _ = sparse_moe(rounded, indices, weights, *experts.values)
    got, _ = evaluate("SparseMoE", tensors_of(hidden, indices, weights, experts), {})
    assert np.abs(got - expected).max() < 0.2 * np.abs(in_bf16 - expected).max()


def test_prefill_in_several_rounds() -> None:
    """More than 8,192 pairs."""
    check(Experts(4, 32, 16, "int8"), *route(np.random.default_rng(0), 3000, 3, 4))


@pytest.mark.parametrize("index", [5, -2])
def test_index_of_no_expert_is_refused(index: int) -> None:
    experts = Experts(5, 32, 32, "int8")
    indices = np.array([[0, 1], [2, index]], np.int32)
    hidden = np.zeros((2, 32), np.float32)
    with pytest.raises(ValueError, match=rf"SparseMoE: indices\[1, 1\] is {index}, expected -1"):
        evaluate("SparseMoE", tensors_of(hidden, indices, np.ones((2, 2), np.float32), experts), {})


@pytest.mark.parametrize(
    ("name", "replacement", "message"),
    [
        ("gate_data", (5, 32, 33), r"gate weights are of shape \[5,32,33\], expected rows of 32"),
        ("gate_scales", (5, 32, 4), r"gate scales hold 640 bytes, expected 320"),
        ("gate_zero_points", (5, 3), r"gate zero points are of shape \[5,3\]"),
        ("up_scales", (0,), r"up scales hold 0 bytes, expected 320"),
        ("down_data", (5, 32, 32, 1), r"down weights are of shape \[5,32,32,1\]"),
        ("down_data", (5, 32, 8), r"down weights are of shape \[5,32,8\]"),
    ],
)
def test_tensors_that_fit_no_format_are_refused(
    name: str, replacement: tuple[int, ...], message: str
) -> None:
    experts = Experts(5, 32, 32, "int8")
    hidden, indices = np.zeros((1, 32), np.float32), np.zeros((1, 1), np.int32)
    tensors = tensors_of(hidden, indices, np.ones((1, 1), np.float32), experts)
    tensors[name] = ov.Tensor(np.zeros(replacement, np.uint8))
    with pytest.raises(ValueError, match=f"SparseMoE: {message}"):
        evaluate("SparseMoE", tensors, {})


@pytest.mark.parametrize(
    ("part", "shape", "message"),
    [
        ("up", (5, 16, 32), "up has 16 neurons, expected the gate's 32"),
        ("down", (5, 33, 32), "down has 33 neurons, expected the hidden size 32"),
        ("up", (4, 32, 32), "up has 4 experts, expected the gate's 5"),
        ("down", (6, 32, 32), "down has 6 experts, expected the gate's 5"),
    ],
)
def test_projections_that_disagree_are_refused_at_run_time(
    part: str, shape: tuple[int, int, int], message: str
) -> None:
    """Each fits its own scales and zero points; the model left their sizes open."""
    experts = Experts(5, 32, 32, "int8")
    setattr(experts, part, projection(np.random.default_rng(0), *shape, "int8"))
    hidden, routing = np.zeros((2, 32), np.float32), route(np.random.default_rng(1), 2, 2, 5)
    with pytest.raises(ValueError, match=f"SparseMoE: {message}"):
        evaluate("SparseMoE", tensors_of(hidden, *routing, experts), {})


@pytest.mark.parametrize("group", [16, 48])
def test_groups_of_other_sizes_are_refused(group: int) -> None:
    experts = Experts(2, 96, 96, "int4", (96 // group, 1))
    hidden, indices = np.zeros((1, 96), np.float32), np.zeros((1, 1), np.int32)
    with pytest.raises(ValueError, match=rf"gate weights of 4 bits have \d+ groups of {group}, expected"):
        evaluate("SparseMoE", tensors_of(hidden, indices, np.ones((1, 1), np.float32), experts), {})


def test_reference_reads_the_low_half_first() -> None:
    data = np.array([[[0x21, 0x43]]], np.uint8)
    scales = np.full((1, 1, 1), 0.5, np.float16).view(np.uint8)
    values = dequantise(data, scales, np.ones((1, 1, 1), np.uint8), 4)
    assert values.tolist() == [[[0.0, 0.5, 1.0, 1.5]]]
