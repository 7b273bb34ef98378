"""GatedMLP, SparseMoE: a row's bits depend neither on the other rows of a pass nor on the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.experts import FORMATS as EXPERT_FORMATS
from ops.experts import Experts, route
from ops.mlps import FORMATS, Mlp
from ops.passes import compile_op, evaluate, infer
from ops.test_gated_mlp import rows_of
from ops.test_gated_mlp import tensors_of as mlp_tensors
from ops.test_moe import tensors_of as expert_tensors
from tiers import by_tier

ROWS = 90
Tensors = dict[str, ov.Tensor]


def random_splits(seed: int) -> list[NDArray[np.intp]]:
    """Row numbers of the passes into which the rows are split, in random order and of random sizes."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, ROWS), int(rng.integers(2, 20)), replace=False))
    return list(np.split(rng.permutation(ROWS), cuts))


def check_splits(
    op_type: str, tensors: Callable[[NDArray[np.intp]], Tensors], attributes: dict[str, Any]
) -> None:
    whole = evaluate(op_type, tensors(np.arange(ROWS)), attributes)[0]
    for seed in range(3):
        for rows in random_splits(seed):
            got = evaluate(op_type, tensors(rows), attributes)[0]
            different = rows[(got != whole[rows]).any(axis=1)]
            assert different.size == 0, f"split {seed}, {len(rows)} rows: rows {different.tolist()} differ"


@pytest.mark.parametrize(("fmt", "row_bits"), [*((fmt, 16) for fmt in FORMATS), ("u8", 8), ("u4", 8)])
@pytest.mark.parametrize(
    ("hidden", "channels", "groups"),
    by_tier([(320, 150, (5, 3)), (130, 70, (1, 1)), (512, 96, (4, 3))], [(320, 150, (5, 3))]),
)
def test_gated_mlp(
    isa: str, fmt: str, row_bits: int, hidden: int, channels: int, groups: tuple[int, int]
) -> None:
    mlp = Mlp(hidden, channels, fmt, groups)
    x = rows_of(mlp, ROWS)
    check_splits("GatedMLP", lambda rows: mlp_tensors(mlp, x[rows]), {**mlp.attributes, "row_bits": row_bits})


@pytest.mark.parametrize("fmt", EXPERT_FORMATS)
@pytest.mark.parametrize(
    ("hidden", "intermediate", "groups"),
    by_tier([(130, 70, (1, 1)), (320, 96, (5, 3))], [(320, 96, (5, 3))]),
)
def test_sparse_moe(isa: str, fmt: str, hidden: int, intermediate: int, groups: tuple[int, int]) -> None:
    experts = Experts(6, hidden, intermediate, fmt, groups if fmt == "int4" else (1, 1))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, hidden)).astype(np.float32)
    indices, weights = route(rng, ROWS, 3, 6)
    check_splits("SparseMoE", lambda rows: expert_tensors(x[rows], indices[rows], weights[rows], experts), {})


@pytest.mark.parametrize("op_type", ["GatedMLP", "SparseMoE"])
def test_any_number_of_threads(isa: str, op_type: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 512)).astype(np.float32)
    if op_type == "GatedMLP":
        mlp = Mlp(512, 384, "u4", (4, 3))
        tensors, attributes = mlp_tensors(mlp, x), mlp.attributes
    else:
        experts = Experts(8, 512, 384, "int8")
        tensors, attributes = expert_tensors(x, *route(rng, 40, 3, 8), experts), {}
    one, many = (
        infer(compile_op(op_type, tensors, attributes, INFERENCE_NUM_THREADS=count), tensors)[0]
        for count in (1, 3)
    )
    assert np.array_equal(one, many)
