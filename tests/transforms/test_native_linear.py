"""Linear layers with compressed weights as Linear."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from transforms.conftest import ExportedDense
from transforms.ffn_models import FAMILIES, LAYERS, tiny_dense
from transforms.moe_models import assert_same_logits, logits

from ovspec_transforms import native_linear, sparse_ffn
from ovspec_transforms.graph import nodes_of_type

PROJECTIONS = {"qwen3": 7, "gelu": 7, "phi3": 4}  # of a layer
OPERATIONS = 4  # of a layer: q, k and v share their rows, and so do gate and up
COMPRESSED = ("int8", "int4")
EXPORTED = [(family, fmt) for family in FAMILIES for fmt in COMPRESSED] + [
    ("qwen3", fmt) for fmt in ("int8_sym", "int4_sym")
]


@pytest.mark.parametrize(("family", "weight_format"), EXPORTED)
def test_exported_models_compute_what_stock_does(
    exported_dense: ExportedDense, family: str, weight_format: str
) -> None:
    expected, _ = logits(exported_dense(family, weight_format))
    model = exported_dense(family, weight_format)
    report = native_linear(model).require(LAYERS * PROJECTIONS[family] + 1)
    assert report.left == ()
    assert len(nodes_of_type(model, "Linear")) == LAYERS * OPERATIONS + 1
    got, _ = logits(model)
    assert_same_logits(expected, got)


@pytest.mark.parametrize("weight_format", COMPRESSED)
def test_synthetic_models(weight_format: str) -> None:
    expected, _ = logits(tiny_dense(weight_format))
    model = tiny_dense(weight_format)
    native_linear(model).require(LAYERS * 7 + 1)
    got, _ = logits(model)
    assert_same_logits(expected, got)


@pytest.mark.parametrize("weight_format", ["fp16", "fp32"])
def test_weights_that_are_not_compressed_stay(weight_format: str) -> None:
    model = tiny_dense(weight_format)
    assert native_linear(model).require(0).left == ()
    assert not nodes_of_type(model, "Linear")


def test_what_another_operation_took_stays_with_it() -> None:
    model = tiny_dense("int8")
    sparse_ffn(model).require(LAYERS)
    native_linear(model).require(LAYERS * 4 + 1)
    expected, _ = logits(tiny_dense("int8"))
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_names_of_tensors_survive() -> None:
    model = tiny_dense("int8")
    before = [sorted(output.get_names()) for output in model.outputs]
    native_linear(model)
    assert [sorted(output.get_names()) for output in model.outputs] == before


def test_rows_are_told_apart_by_more_than_their_names() -> None:
    """Friendly names need not be unique."""
    model = tiny_dense("int8")
    expected, _ = logits(tiny_dense("int8"))
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Multiply":
            node.set_friendly_name("the same")
    native_linear(model).require(LAYERS * 7 + 1)
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_a_second_run_changes_nothing() -> None:
    model = tiny_dense("int8")
    native_linear(model)
    assert native_linear(model).count == 0


def compressed(inputs: int, neurons: int, groups: int) -> ov.Model:
    """One linear layer of 4 bits, as NNCF writes it."""
    rng = np.random.default_rng(0)
    rows = ops.parameter(ov.PartialShape([-1, inputs]), ov.Type.f32, name="rows")
    shape = [neurons, groups, inputs // groups]
    packed = rng.integers(0, 256, (neurons * inputs // 2,), dtype=np.uint8)
    data = ops.constant(ov.Tensor(packed, ov.Shape(shape), ov.Type.u4))
    sevens = np.full((neurons * groups // 2,), 0x77, np.uint8)
    zero_point = ops.constant(ov.Tensor(sevens, ov.Shape([neurons, groups, 1]), ov.Type.u4))
    centred = ops.subtract(ops.convert(data, "f16"), ops.convert(zero_point, "f16"))
    scaled = ops.multiply(centred, ops.constant(np.full((neurons, groups, 1), 0.1, np.float16)))
    weights = ops.convert(ops.reshape(scaled, ops.constant(np.array([neurons, inputs])), False), "f32")
    product = ops.matmul(rows, weights, False, True)
    product.set_friendly_name("odd")
    return ov.Model([product], [rows])


def test_a_form_that_is_not_known_is_left_and_reported() -> None:
    assert native_linear(compressed(64, 16, 4)).require(1).left == ()
    report = native_linear(compressed(48, 16, 4)).require(0)
    (left,) = report.left
    assert left == "odd: groups are of 12 weights, expected a multiple of 8"
