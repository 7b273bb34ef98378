"""GatedMLP against its reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.mlps import FORMATS, PARTS, Mlp
from ops.passes import evaluate
from tiers import by_tier

from ovspec_ops.gated_mlp.reference import activate, gated_mlp, kept_channels

# 16 bits of activations beside f32 accumulation; bf16 would be off by some 3e-3.
TOLERANCE = 2e-4


def rows_of(mlp: Mlp, rows: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, mlp.hidden)).astype(np.float32)


def tensors_of(
    mlp: Mlp,
    hidden: NDArray[np.float32],
    limits: tuple[float, ...] = (),
    row_weights: NDArray[np.float32] | None = None,
) -> dict[str, ov.Tensor]:
    arrays: dict[str, NDArray[Any]] = {"hidden": hidden}
    for part in PARTS:
        for what, tensor in zip(("data", "scales", "zero_points"), mlp.parts[part], strict=True):
            arrays[f"{part}_{what}"] = tensor
    arrays["limits"] = np.array(limits, np.float32)
    arrays["row_weights"] = np.zeros(0, np.float32) if row_weights is None else row_weights
    return {name: ov.Tensor(np.ascontiguousarray(array)) for name, array in arrays.items()}


def check(
    mlp: Mlp,
    hidden: NDArray[np.float32] | int,
    *,
    limit: int | None = None,
    row_weights: NDArray[np.float32] | None = None,
    tolerance: float = TOLERANCE,
    **attributes: Any,
) -> NDArray[np.float32]:
    if isinstance(hidden, int):
        hidden = rows_of(mlp, hidden)
    count_kept = -1 if limit is None else limit
    output, count = gated_mlp(hidden, *mlp.values, limit=count_kept, row_weights=row_weights, **attributes)
    tensors = tensors_of(mlp, hidden, () if limit is None else (limit,), row_weights)
    got, read = evaluate("GatedMLP", tensors, {**mlp.attributes, **attributes})
    assert_close("output", output, got, tolerance)
    assert read.tolist() == [count]
    return np.asarray(got)


@pytest.mark.parametrize(
    ("group", "hidden", "channels"),
    by_tier(product([32, 64, 128, 256], [512, 2816], [768]), [(32, 512, 768), (256, 512, 768)]),
)
def test_groups_of_int4(isa: str, group: int, hidden: int, channels: int) -> None:
    check(Mlp(hidden, channels, "u4", (hidden // group, channels // group)), 5)


@pytest.mark.parametrize("fmt", FORMATS)
def test_limits(isa: str, fmt: str) -> None:
    for limit in (1, 61, 150):
        # With one channel rounding errors do not average out.
        check(Mlp(128, 150, fmt, (2, 5)), 5, limit=limit, tolerance=5e-4)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu_erf"])
def test_activations(isa: str, activation: str) -> None:
    mlp = Mlp(64, 80, "f32")
    for scale in (0.01, 1.0, 30.0):
        check(mlp, rows_of(mlp, 4) * np.float32(scale), activation=activation, tolerance=1e-5)


def test_rows_that_are_not_limited_take_all_channels(isa: str) -> None:
    """And the others do as if those were not there."""
    mlp = Mlp(96, 70, "u8")
    hidden, weights = rows_of(mlp, 11), np.array([1, 0, 0.5, 0, 0, 1, 0, 0, 0, 0.25, 0], np.float32)
    got = check(mlp, hidden, row_weights=weights, limit=21)
    kept = check(mlp, hidden[weights > 0], limit=21)
    assert np.array_equal(got[weights > 0], kept)
    assert np.array_equal(got[weights == 0], check(mlp, hidden[weights == 0]))


@pytest.mark.parametrize("fmt", FORMATS)
def test_gates_that_another_operation_computed(isa: str, fmt: str) -> None:
    """With their values in place of the gate's weights: prompts, limited rows, and both in one pass."""
    mlp = Mlp(96, 150, fmt)
    for rows, limits, weights in (
        (5, (), None),
        (80, (), None),
        (5, (61,), None),
        (4, (61,), [1, 0, 2, 0]),
    ):
        hidden = rows_of(mlp, rows)
        row_weights = None if weights is None else np.array(weights, np.float32)
        gate, up, down = mlp.values
        limit = limits[0] if limits else -1
        expected, count = gated_mlp(hidden, gate, up, down, limit=limit, row_weights=row_weights)
        tensors = tensors_of(mlp, hidden, limits, row_weights)
        tensors["gate_data"] = ov.Tensor((hidden.astype(np.float64) @ gate.T).astype(np.float32))
        for part in ("scales", "zero_points"):
            tensors[f"gate_{part}"] = ov.Tensor(np.zeros(0, np.uint8))
        got, read = evaluate("GatedMLP", tensors, {**mlp.attributes, "gate_format": "values"})
        assert_close("output", expected, got, 5e-4)
        assert read.tolist() == [count]


def test_given_gates_of_another_size_are_refused() -> None:
    mlp = Mlp(64, 80, "u8")
    tensors = tensors_of(mlp, rows_of(mlp, 3))
    tensors["gate_data"] = ov.Tensor(np.zeros((3, 79), np.float32))
    with pytest.raises(
        ValueError, match="holds 237 values of f32, expected f32, one for each of 3 rows and 80"
    ):
        evaluate("GatedMLP", tensors, {**mlp.attributes, "gate_format": "values"})


def test_equal_scores_keep_the_first_channels() -> None:
    mlp = Mlp(64, 40, "f32")
    gate, up, down = mlp.parts["gate"][0], mlp.parts["up"][0], mlp.parts["down"][0]
    gate[10:30] = gate[10]
    hidden = np.zeros((3, 64), np.float32)
    hidden[:, 5] = 1, 2, 3  # one product, so the order of additions can't make equal channels differ
    for count in range(1, 41):
        output, _ = gated_mlp(hidden, gate, up, down, limit=count)
        got, read = evaluate("GatedMLP", tensors_of(mlp, hidden, (count,)), mlp.attributes)
        assert_close("output", output, got, 1e-5)
        assert read.tolist() == [count]


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_but_kept_channels_is_read(isa: str, fmt: str) -> None:
    mlp = Mlp(192, 96, fmt, (3, 3))
    hidden = rows_of(mlp, 9)
    output, _ = gated_mlp(hidden, *mlp.values, limit=40)
    kept = kept_channels(activate(hidden.astype(np.float64) @ mlp.values[0].T, "silu"), 40)
    for part in ("up", "down"):
        data = mlp.parts[part][0].view(np.uint8).reshape(96, -1)
        data[np.setdiff1d(np.arange(96), kept)] = 0xFF  # NaN in every format that has one
    got, _ = evaluate("GatedMLP", tensors_of(mlp, hidden, (40.0,)), mlp.attributes)
    assert_close("output", output, got, TOLERANCE)


def test_formats_may_differ_between_projections(isa: str) -> None:
    formats = {"gate": "u4", "up": "u8", "down": "f16"}
    for _ in range(3):
        formats = dict(zip(PARTS, [formats["down"], formats["gate"], formats["up"]], strict=True))
        check(Mlp(128, 96, "f32", (2, 3), formats=formats), 6, limit=30)


def test_rows_of_other_sizes_share_blocks(isa: str) -> None:
    mlp = Mlp(128, 64, "u8")
    hidden = rows_of(mlp, 9) * np.array([1e-6, 1e4, 1, 0, 1e-30, 1e2, 1, 1e-3, 7], np.float32)[:, None]
    expected, _ = gated_mlp(hidden, *mlp.values)
    got, _ = evaluate("GatedMLP", tensors_of(mlp, hidden), mlp.attributes)
    for row in (1, 2, 3, 5, 6, 7, 8):
        assert_close(f"row {row}", expected[row], got[row], TOLERANCE)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_stays_so_alone(isa: str, fmt: str, value: float) -> None:
    mlp = Mlp(64, 64, fmt)
    hidden = rows_of(mlp, 4)
    hidden[2, 5] = value
    got, _ = evaluate("GatedMLP", tensors_of(mlp, hidden, (32.0,)), mlp.attributes)
    assert not np.isfinite(got[2]).any()
    assert np.isfinite(got[[0, 1, 3]]).all()


def test_a_row_of_nan_does_not_choose(isa: str) -> None:
    """The other rows keep the channels that they keep without it."""
    mlp, others = Mlp(64, 64, "u8"), np.array([0, 2, 3])
    hidden = rows_of(mlp, 4)
    hidden[1] = np.nan
    got, read = evaluate("GatedMLP", tensors_of(mlp, hidden, (20.0,)), mlp.attributes)
    alone, count = evaluate("GatedMLP", tensors_of(mlp, hidden[others], (20.0,)), mlp.attributes)
    assert np.array_equal(got[others], alone) and read.tolist() == count.tolist()
    assert np.isnan(got[1]).all()


def test_no_rows(isa: str) -> None:
    check(Mlp(32, 32, "u8"), 0)
    check(Mlp(32, 32, "u8"), 0, limit=3)


def test_prefill_in_several_rounds(isa: str) -> None:
    mlp = Mlp(128, 64, "u4", (2, 2))
    whole = check(mlp, 150)
    assert np.array_equal(whole[130:], check(mlp, rows_of(mlp, 150)[130:]))


def test_errors_are_no_further_than_bf16(isa: str) -> None:
    """Outliers included, which is where one scale per row is worst."""
    mlp = Mlp(1024, 384, "u8")
    hidden = rows_of(mlp, 8)
    hidden[:, 17] *= 300
    expected, _ = gated_mlp(hidden, *mlp.values)
    rounded = ((hidden.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    in_bf16, _ = gated_mlp(rounded, *mlp.values)
    got, _ = evaluate("GatedMLP", tensors_of(mlp, hidden), mlp.attributes)
    assert np.abs(got - expected).max() < 0.3 * np.abs(in_bf16 - expected).max()


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (np.nan, r"verify_channel_limits\[0\] is nan, expected -1"),
        (-0.5, r"verify_channel_limits\[0\] is -0.5\d*, expected -1"),
        (0.0, r"is 0.0\d*, expected -1 \(all channels\) or a whole number of channels from 1 to 32"),
        (2.5, r"is 2.5\d*, expected -1"),
        (33.0, r"is 33.0\d*, expected -1"),
    ],
)
def test_limits_out_of_range_are_refused(limit: float, message: str) -> None:
    mlp = Mlp(64, 32, "u8")
    with pytest.raises(ValueError, match=f"GatedMLP: .*{message}"):
        evaluate("GatedMLP", tensors_of(mlp, rows_of(mlp, 1), (limit,)), mlp.attributes)


def test_an_operation_of_an_older_export_is_refused_with_the_remedy() -> None:
    mlp = Mlp(64, 32, "u8")
    tensors = tensors_of(mlp, rows_of(mlp, 1)) | {"order": ov.Tensor(np.zeros(0, np.int32))}
    with pytest.raises(ValueError, match=r"GatedMLP: .*export the model again"):
        evaluate("GatedMLP", tensors, mlp.attributes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "row_weights",
            np.ones(3, np.float32),
            "verify_row_weights holds 3 values, expected one for each of",
        ),
        (
            "row_weights",
            np.array([1, -1], np.float32),
            r"verify_row_weights\[1\] is -1.0\d*, expected a finite",
        ),
        ("gate_data", np.zeros((32, 65), np.uint8), r"gate weights are of shape \[32,65\] and type u8"),
        ("gate_scales", np.zeros((32, 4), np.uint8), r"gate scales are of shape \[32,4\], expected \[32,2\]"),
        ("up_zero_points", np.zeros(3, np.uint8), r"up zero points are of shape \[3\]"),
        ("down_zero_points", np.zeros((2, 64), np.uint8), "down weights of 8 bits have 2 groups, expected 1"),
        ("up_data", np.zeros((31, 64), np.uint8), r"up zero points are of shape \[32,1\], expected \[31,1\]"),
        ("down_data", np.zeros((32, 63), np.uint8), r"down weights are of shape \[32,63\]"),
        (
            "down_scales",
            np.zeros((1, 64), np.uint8),
            r"down scales are of shape \[1,64\], expected \[1,128\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name: str, value: NDArray[Any], message: str) -> None:
    mlp = Mlp(64, 32, "u8")
    tensors = tensors_of(mlp, rows_of(mlp, 2), (3.0,), np.ones(2, np.float32))
    tensors[name] = ov.Tensor(value)
    with pytest.raises(ValueError, match=f"GatedMLP: {message}"):
        evaluate("GatedMLP", tensors, mlp.attributes)


def test_rows_whose_sums_leave_32_bits_are_refused() -> None:
    mlp = Mlp(65_600, 32, "u8")
    with pytest.raises(ValueError, match="rows have 65600 values, expected at most 65536"):
        evaluate("GatedMLP", tensors_of(mlp, rows_of(mlp, 1)), mlp.attributes)


@pytest.mark.parametrize(("fmt", "part"), [("u8", "up_zero_points"), ("u4", "down_scales")])
def test_scales_of_another_type_are_refused(fmt: str, part: str) -> None:
    """Half of the bytes: the kernel would read past their end."""
    mlp = Mlp(64, 32, fmt)
    tensors = tensors_of(mlp, rows_of(mlp, 2), (3.0,), np.ones(2, np.float32))
    tensors[part] = ov.Tensor(ov.Type.u4, tensors[part].shape)
    with pytest.raises(ValueError, match=r"GatedMLP: (scales|zero points) .* of type u4, expected u8"):
        evaluate("GatedMLP", tensors, mlp.attributes)


@pytest.mark.parametrize(
    ("hidden", "channels", "said"), [(0, 4, "rows of no values"), (64, 0, "no channels")]
)
@pytest.mark.parametrize("fmt", ["u8", "f32"])
def test_nothing_to_multiply_is_refused(fmt: str, hidden: int, channels: int, said: str) -> None:
    bytes_of = {"f32": np.float32, "u8": np.uint8}[fmt]
    tensors = {"hidden": np.zeros((1, hidden), np.float32)}
    for name in ("gate", "up", "down"):
        width = -(-hidden // 64) * 64 if name == "down" and fmt == "u8" else hidden
        tensors[f"{name}_data"] = np.zeros((channels, width), bytes_of)
        groups = (1, hidden) if name == "down" else (channels, 1)
        of_integers = groups if fmt == "u8" else (0, 0)
        tensors[f"{name}_scales"] = np.zeros((of_integers[0], 2 * of_integers[1]), np.uint8)
        tensors[f"{name}_zero_points"] = np.zeros(of_integers, np.uint8)
    tensors |= {"limits": np.zeros(0, np.float32), "row_weights": np.ones(1, np.float32)}
    given = {name: ov.Tensor(array) for name, array in tensors.items()}
    options = {f"{name}_format": fmt for name in ("gate", "up", "down")} | {"activation": "silu", "layer": 0}
    with pytest.raises(ValueError, match=said):
        evaluate("GatedMLP", given, options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("activation", "relu", "expected one of silu, gelu_tanh, gelu_erf"),
        ("down_format", "int8", "expected one of f32, f16, u8, u4"),
        ("layer", -1, "expected at least 0"),
    ],
)
def test_unknown_attributes_are_refused(name: str, value: Any, message: str) -> None:
    mlp = Mlp(64, 32, "u8")
    with pytest.raises(ValueError, match=f"GatedMLP: attribute {name} is '?{value}'?, {message}"):
        evaluate("GatedMLP", tensors_of(mlp, rows_of(mlp, 1)), {**mlp.attributes, name: value})
