"""GatedMLP against its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.mlps import FORMATS, PARTS, Mlp
from ops.passes import evaluate

from ovspec_ops.gated_mlp import gated_mlp

# 16 bits of activations beside f32 accumulation; bf16 would be off by some 3e-3.
TOLERANCE = 2e-4
RULES = ("threshold", "top_k", "static")


def rows_of(mlp: Mlp, rows: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, mlp.hidden)).astype(np.float32)


def tensors_of(
    mlp: Mlp,
    hidden: NDArray[np.float32],
    limits: tuple[float, ...] = (),
    row_weights: NDArray[np.float32] | None = None,
    order: NDArray[np.int32] | None = None,
) -> dict[str, ov.Tensor]:
    arrays: dict[str, NDArray[Any]] = {"hidden": hidden}
    for part in PARTS:
        for what, tensor in zip(("data", "scales", "zero_points"), mlp.parts[part], strict=True):
            arrays[f"{part}_{what}"] = tensor
    arrays["limits"] = np.array(limits, np.float32)
    arrays["row_weights"] = np.zeros(0, np.float32) if row_weights is None else row_weights
    arrays["order"] = np.zeros(0, np.int32) if order is None else order
    return {name: ov.Tensor(np.ascontiguousarray(array)) for name, array in arrays.items()}


def check(
    mlp: Mlp,
    hidden: NDArray[np.float32] | int,
    *,
    limit: float | None = None,
    row_weights: NDArray[np.float32] | None = None,
    order: NDArray[np.int32] | None = None,
    tolerance: float = TOLERANCE,
    **attributes: Any,
) -> NDArray[np.float32]:
    if isinstance(hidden, int):
        hidden = rows_of(mlp, hidden)
    rule = {"limit": -1.0 if limit is None else limit, "row_weights": row_weights, "order": order}
    output, count = gated_mlp(hidden, *mlp.values, **rule, **attributes)
    limits = () if limit is None else (limit,)
    tensors = tensors_of(mlp, hidden, limits, row_weights, order)
    got, read = evaluate("GatedMLP", tensors, {**mlp.attributes, **attributes})
    assert_close("output", output, got, tolerance)
    assert read.tolist() == [count]
    return np.asarray(got)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("hidden", "channels"), [(64, 32), (130, 70), (256, 384), (100, 37), (34, 5), (513, 130)]
)
def test_odd_sizes(isa: str, fmt: str, hidden: int, channels: int) -> None:
    mlp = Mlp(hidden, channels, fmt)
    for rows in (1, 2, 3, 7):
        check(mlp, rows)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_groups_of_int4(isa: str, group: int) -> None:
    for hidden, channels in ((512, 768), (1280, 256), (2816, 256)):
        check(Mlp(hidden, channels, "u4", (hidden // group, channels // group)), 5)


@pytest.mark.parametrize("groups", [1, 3, 5, 7, 11, 21, 37])
def test_any_number_of_groups(isa: str, groups: int) -> None:
    for size in (32, 6):
        check(Mlp(groups * size, groups * size, "u4", (groups, groups)), 4)
