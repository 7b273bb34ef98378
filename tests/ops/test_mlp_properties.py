"""Random GatedMLP and SparseMoE passes against the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.compare import ROUNDED_TOLERANCE, ROUNDS, assert_close, without_a_step
from ops.experts import FORMATS as EXPERT_FORMATS
from ops.experts import Experts
from ops.mlps import FORMATS, PARTS, Mlp
from ops.passes import evaluate
from ops.properties import examples
from ops.test_gated_mlp import TOLERANCE, rows_of, tensors_of
from ops.test_moe import tensors_of as expert_tensors

from ovspec_ops.gated_mlp.reference import activate, gated_mlp
from ovspec_ops.moe.reference import sparse_moe

DIVISOR = st.sampled_from([1, 1, 2, 3, 5, 7, 11])


def odd_hidden_size(*formats: str) -> example:
    """A pass of 513 numbers a row, with these formats of gate, up and down."""
    return example(
        formats=formats, hidden=513, channels=37, groups=(1, 1), rows=5, row_bits=8, density=None, seed=0
    )


@examples(40)
@given(
    formats=st.tuples(*[st.sampled_from(FORMATS)] * 3),
    hidden=st.integers(1, 6).map(lambda n: 32 * n)
    | st.integers(1, 40).map(lambda n: 2 * n)
    | st.sampled_from([17, 33, 513]),
    channels=st.integers(1, 40) | st.sampled_from([70, 150]),
    groups=st.tuples(DIVISOR, DIVISOR),
    rows=st.integers(1, 20),
    row_bits=st.sampled_from([8, 16]),
    density=st.none() | st.floats(0.05, 1.0),
    seed=st.integers(0, 2**31),
)
@odd_hidden_size("f32", "f16", "u8")
@odd_hidden_size("f16", "u8", "f32")
@odd_hidden_size("u8", "f32", "f16")
def test_random_gated_mlps(
    isa: str,
    formats: tuple[str, str, str],
    hidden: int,
    channels: int,
    groups: tuple[int, int],
    rows: int,
    row_bits: int,
    density: float | None,
    seed: int,
) -> None:
    """All channels; or the gates are given, so that rounding does not change which channels are kept."""
    if "u4" in formats:  # two of a row share a byte
        hidden += hidden % 2
    hidden, channels = hidden * groups[0], channels * groups[1]
    mlp = Mlp(hidden, channels, "u8", groups, seed % 1000, dict(zip(PARTS, formats, strict=True)))
    x, weights = rows_of(mlp, rows, seed), np.random.default_rng(seed).integers(0, 2, rows).astype(np.float32)
    limit = -1 if density is None else max(1, round(density * channels))
    rounds = mlp.byte_rows if row_bits == 8 and isa in ROUNDS else None
    tensors = tensors_of(mlp, x, (limit,), weights)
    attributes = {**mlp.attributes, "row_bits": row_bits}
    if density is not None:
        give_gates(tensors, attributes, (x.astype(np.float64) @ mlp.values[0].T).astype(np.float32))
        rounds = rounds and {**rounds, "gate": ("f32", 1)}
    expected, count = gated_mlp(x, *mlp.values, limit=limit, row_weights=weights, byte_rows=rounds)
    got, read = evaluate("GatedMLP", tensors, attributes)
    if rounds:  # of few channels one counts for much
        got = without_a_step(expected, got, mlp.values[2].T, ROUNDED_TOLERANCE)
    # With few channels rounding errors do not average out.
    assert_close("GatedMLP", expected, got, ROUNDED_TOLERANCE if rounds else 5 * TOLERANCE)
    assert read.tolist() == [count]


def give_gates(tensors: dict[str, ov.Tensor], attributes: dict[str, Any], gates: NDArray[np.float32]) -> None:
    """Replaces the gate's weights by its values `[rows, channels]`."""
    tensors["gate_data"] = ov.Tensor(np.ascontiguousarray(gates))
    for part in ("scales", "zero_points"):
        tensors[f"gate_{part}"] = ov.Tensor(np.zeros(0, np.uint8))
    attributes["gate_format"] = "values"


def test_tiles_take_channels_with_a_gap_for_what_they_are(isa: str) -> None:
    """15 channels with a gap, filled up with the last one: first and last are still 15 apart."""
    kept = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    for channels, chosen in ((32, kept), (32, [*kept[:6], *kept[7:]]), (64, [16 + c for c in kept])):
        mlp = Mlp(128, channels, "u8")
        x = rows_of(mlp, 5)
        gates = np.full((5, channels), 0.01, np.float32)
        gates[:, chosen] = np.random.default_rng(0).uniform(1, 2, (5, len(chosen)))
        tensors, attributes = tensors_of(mlp, x, (len(chosen),)), {**mlp.attributes}
        give_gates(tensors, attributes, gates)
        _, up, down = mlp.values
        inner = activate(gates.astype(np.float64), "silu") * (x.astype(np.float64) @ up.T)
        got, read = evaluate("GatedMLP", tensors, attributes)
        assert read.tolist() == [len(chosen)]
        assert_close("GatedMLP", inner[:, chosen] @ down[chosen], got, TOLERANCE)


@pytest.mark.parametrize("fmt", EXPERT_FORMATS)
@examples(10)
@given(
    group=st.sampled_from([32, 64, 128, 256]),
    sizes=st.tuples(st.integers(1, 17), st.integers(1, 9)),
    odd=st.sampled_from([0, 0, 2, 4, 6]),
    experts=st.integers(1, 6),
    rows=st.integers(1, 20),
    top_k=st.integers(1, 4),
    dropped=st.floats(0, 0.7),
    seed=st.integers(0, 2**31),
)
# An intermediate size of 6, smaller than a vector.
@example(group=2, sizes=(2, 0), odd=4, experts=3, rows=5, top_k=2, dropped=0.0, seed=0)
def test_random_experts(
    isa: str,
    fmt: str,
    group: int,
    sizes: tuple[int, int],
    odd: int,
    experts: int,
    rows: int,
    top_k: int,
    dropped: float,
    seed: int,
) -> None:
    sizes = (max(32 * sizes[0] // group, 1), max(32 * sizes[1] // group, 1))
    hidden, inner = (group * size + odd for size in sizes)
    groups = sizes if fmt == "int4" and not odd else (1, 1)
    some = Experts(experts, hidden, inner, fmt, groups, seed % 1000)
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, experts, (rows, top_k)).astype(np.int32)
    indices[rng.random(indices.shape) < dropped] = -1
    weights = rng.dirichlet(np.ones(top_k), rows).astype(np.float32)
    x = rng.standard_normal((rows, hidden)).astype(np.float32)
    expected, count = sparse_moe(x, indices, weights, *some.values)
    got, read = evaluate("SparseMoE", expert_tensors(x, indices, weights, some), {})
    assert_close("SparseMoE", expected, got, 5 * TOLERANCE)
    assert read.tolist() == [count]
