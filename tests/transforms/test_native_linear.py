"""Linear layers as Linear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from tiers import by_tier
from transforms.conftest import ExportedDense
from transforms.ffn_models import FAMILIES, LAYERS, tiny_dense
from transforms.moe_models import assert_same_logits, logits

import ovspec_ops
from ovspec_ops.linear.layout import bf16_bits, bf16_values
from ovspec_transforms import native_linear, sparse_ffn
from ovspec_transforms.graph import nodes_of_type
from ovspec_transforms.weights.decompression import decompression_convert

PROJECTIONS = {"qwen3": 7, "gelu": 7, "phi3": 4}  # of a layer
OPERATIONS = 4  # of a layer: q, k and v share their rows, and so do gate and up
COMPRESSED = ("int8", "int4")
EXPORTED = [(family, fmt) for family in FAMILIES for fmt in COMPRESSED] + [
    ("qwen3", fmt) for fmt in ("int8_sym", "int4_sym")
]


@pytest.mark.parametrize(
    ("family", "weight_format"),
    by_tier(EXPORTED, [("qwen3", "int8"), ("phi3", "int4")]),
)
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
def test_floating_point_weights(weight_format: str) -> None:
    expected, _ = logits(tiny_dense(weight_format))
    model = tiny_dense(weight_format)
    assert native_linear(model).require(LAYERS * 7 + 1).left == ()
    assert {node.get_attributes()["row_bits"] for node in nodes_of_type(model, "Linear")} == {32}
    got, _ = logits(model)
    assert_same_logits(expected, got)


@pytest.mark.parametrize("weight_format", ["fp16", "fp32"])
def test_arithmetic_in_bf16(weight_format: str) -> None:
    expected, _ = logits(tiny_dense(weight_format))
    model = tiny_dense(weight_format)
    native_linear(model, "bf16").require(LAYERS * 7 + 1)
    linears = nodes_of_type(model, "Linear")
    assert {(a["format"], a["row_bits"]) for a in (node.get_attributes() for node in linears)} == {
        ("bf16", 16)
    }
    got, _ = logits(model)
    rounded = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert 1e-4 < rounded < 2e-2  # that of 8 significant bits


def product(weights: ov.Node, transpose_b: bool = True, rows: ov.Type = ov.Type.f32) -> ov.Model:
    """Rows of 24 values times constant weights."""
    hidden = ops.parameter(ov.PartialShape([-1, 24]), rows, name="rows")
    result = ops.matmul(hidden, weights, False, transpose_b)
    result.set_friendly_name("odd")
    return ov.Model([result], [hidden])


def bf16_constant(values: NDArray[np.float32]) -> ov.Node:
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape(list(values.shape)))
    tensor.data.view(np.uint16)[...] = bf16_bits(values)
    return ops.convert(ov.op.Constant(tensor, shared_memory=False), "f32")


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "not transposed"])
def test_weights_of_every_type_and_order(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((50, 24)).astype(np.float32)
    hidden = np.random.default_rng(1).standard_normal((5, 24)).astype(np.float32)
    nodes = {
        "f32": lambda: ops.constant(values),
        "f16": lambda: ops.convert(ops.constant(values.astype(np.float16)), "f32"),
        "bf16": lambda: bf16_constant(values),
        "not transposed": lambda: ops.constant(np.ascontiguousarray(values.T)),
    }
    held = {"f16": values.astype(np.float16).astype(np.float64), "bf16": bf16_values(bf16_bits(values))}
    model = product(nodes[kind](), transpose_b=kind != "not transposed")
    assert native_linear(model).require(1).left == ()
    core = ov.Core()
    ovspec_ops.load(core)
    got = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([hidden])[0]
    expected = hidden.astype(np.float64) @ held.get(kind, values).T.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_rows_that_are_columns() -> None:
    """As behind LFM2's convolutions; a product of the same tensor's own rows is another operation."""
    rng = np.random.default_rng(0)
    first, second, third = (rng.standard_normal((50, 24)).astype(np.float32) for _ in range(3))
    given = rng.standard_normal((2, 24, 24)).astype(np.float32)
    hidden = ops.parameter(ov.PartialShape([-1, 24, -1]), ov.Type.f32)
    products = [
        ops.matmul(hidden, ops.constant(first), True, True),
        ops.matmul(hidden, ops.constant(second), True, True),
        ops.matmul(hidden, ops.constant(third), False, True),
    ]
    model = ov.Model(products, [hidden])
    assert native_linear(model).require(3).left == ()
    assert len([node for node in model.get_ops() if node.get_type_name() == "Linear"]) == 2
    core = ov.Core()
    ovspec_ops.load(core)
    got = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([given])
    columns = given.transpose(0, 2, 1)
    for found, rows, weights in zip(
        got.values(), (columns, columns, given), (first, second, third), strict=True
    ):
        expected = rows.astype(np.float64) @ weights.T.astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_the_error_is_no_larger_than_that_of_stock(precision: str, kind: type, rows: int) -> None:
    """Against f64: of rows and weights as they are, which bf16 rounds in both."""
    if precision == "bf16" and "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no bf16")
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((300, 2000)) / 2000**0.5).astype(kind)
    hidden = rng.standard_normal((rows, 2000)).astype(np.float32)
    expected = hidden.astype(np.float64) @ values.T.astype(np.float64)
    core = ov.Core()
    ovspec_ops.load(core)
    errors = []
    for native in (True, False):
        parameter = ops.parameter(ov.PartialShape([-1, 2000]), ov.Type.f32)
        stored = ops.constant(values) if kind is np.float32 else decompression_convert(ops.constant(values))
        model = ov.Model([ops.matmul(parameter, stored, False, True)], [parameter])
        if native:
            native_linear(model, "bf16" if precision == "bf16" else "f32").require(1)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
        errors.append(np.square(compiled([hidden])[0] - expected).mean())
    # Where bf16 rounds the same in both, the order of f32 sums moves the error by some 1e-5 of it.
    assert 0 < errors[0] <= errors[1] * (1 + (1e-4 if precision == "bf16" else 0))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: product(ops.constant(np.ones((2, 8, 24), np.float32))), r"weights of a linear layer are"),
        (
            lambda: product(ops.constant(np.ones((8, 24), np.float16)), rows=ov.Type.f16),
            "its rows are of type f16",
        ),
    ],
)
def test_products_that_are_left_are_named(model: Callable[[], ov.Model], reason: str) -> None:
    (left,) = native_linear(model()).require(0).left
    assert left.startswith("odd: ")
    assert reason in left


def test_products_of_two_activations_are_no_linear_layers() -> None:
    one, other = (ops.parameter(ov.PartialShape([-1, 24]), ov.Type.f32) for _ in range(2))
    model = ov.Model([ops.matmul(one, ops.multiply(other, np.float32(2)), False, True)], [one, other])
    assert native_linear(model).require(0).left == ()


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
