"""Routed experts as one operation: where the pass fires, and that the model computes what it did."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from tiers import by_tier
from transforms.conftest import ExportedMoE
from transforms.moe_models import EXPERTS, FAMILIES, LAYERS, TOP_K, assert_same_logits, logits, tiny_moe

import ovspec_ops
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import moe_layers, sparse_moe, to_paged
from ovspec_transforms.experts.moe_layers import is_sum_of_experts
from ovspec_transforms.graph import nodes_of_type

# The form of the weights does not depend on the family, so one family is enough.
EXPORTED = [(family, fmt) for family in FAMILIES for fmt in ("f32", "int8", "int4")] + [
    (family, fmt) for family in ("qwen3_moe", "gpt_oss") for fmt in ("f16", "int8_sym", "int4_sym")
]


@pytest.mark.parametrize(
    ("family", "weight_format"),
    by_tier(
        EXPORTED,
        [
            ("gpt_oss", "int4"),
        ],
    ),
)
def test_exported_models_compute_what_stock_does(
    exported_moe: ExportedMoE, family: str, weight_format: str
) -> None:
    expected, _ = logits(exported_moe(family, weight_format))
    model = exported_moe(family, weight_format)
    report = sparse_moe(model)
    assert report.require(LAYERS).left == ()
    assert not nodes_of_type(model, "Tile")
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_experts_matter_in_these_models(exported_moe: ExportedMoE) -> None:
    """Else the comparisons of logits above would pass with any experts."""
    model = exported_moe("mixtral", "f32")
    expected, _ = logits(model)
    for node in list(model.get_ordered_ops()):
        if is_sum_of_experts(node):
            weighted = node.input(0).get_source_output().get_node()
            halved = ops.multiply(weighted.input(0).get_source_output(), np.array(0.98, np.float32))
            weighted.input(0).replace_source_output(halved.output(0))
    got, _ = logits(model)
    assert np.abs(got - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_listed_before_and_after(exported_moe: ExportedMoE, family: str) -> None:
    model = exported_moe(family, "int8")
    before = moe_layers(model)
    assert [(layer.index, layer.experts, layer.top_k, layer.native) for layer in before] == [
        (n, EXPERTS, TOP_K, False) for n in range(LAYERS)
    ]
    sparse_moe(model)
    after = moe_layers(model)
    assert [layer.name for layer in after] == [layer.name for layer in before]
    assert all(layer.native for layer in after)


def test_paged_models_too(exported_moe: ExportedMoE) -> None:
    for first, second in ((to_paged, sparse_moe), (sparse_moe, to_paged)):
        model = exported_moe("qwen2_moe", "int4")
        assert first(model).count == LAYERS
        assert second(model).count == LAYERS


def test_a_second_run_changes_nothing(exported_moe: ExportedMoE) -> None:
    model = exported_moe("mixtral", "int8")
    sparse_moe(model)
    assert sparse_moe(model).count == 0
    assert len(nodes_of_type(model, "SparseMoE")) == LAYERS


@pytest.mark.parametrize("weight_format", ["int8", "int4", "fp16", "fp32"])
def test_synthetic_models(weight_format: str) -> None:
    expected, _ = logits(tiny_moe(weight_format))
    model = tiny_moe(weight_format)
    sparse_moe(model).require(2)
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_saved_model_computes_the_same(tmp_path: Path) -> None:
    model = tiny_moe("int4")
    sparse_moe(model)
    expected, _ = logits(model)
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    core = ov.Core()
    ovspec_ops.load(core)
    read = core.read_model(tmp_path / "model.xml")
    assert all(layer.native for layer in moe_layers(read))
    got, _ = logits(read)
    assert np.array_equal(expected, got)


@pytest.mark.parametrize("weight_format", ["int4", "f16", "int8"])
def test_weights_stay_in_their_memory(exported_moe: ExportedMoE, weight_format: str) -> None:
    """A mapped file stays mapped: the operation's constant is the model's own memory."""
    model = exported_moe("qwen3_moe", weight_format)

    def address(node: ov.Node) -> int:
        return int(node.data.__array_interface__["data"][0])

    before = {address(node) for node in nodes_of_type(model, "Constant")}
    sparse_moe(model)
    gc.collect()
    for operation in nodes_of_type(model, "SparseMoE"):
        for position in (3, 6, 9):
            assert address(operation.input(position).get_source_output().get_node()) in before


def test_dense_model_is_refused() -> None:
    model = build_model(get_shape("qwen3-0.6b", layers=1, vocab_size=96), "int8")
    with pytest.raises(ValueError, match="the model has no routed experts"):
        sparse_moe(model)
    assert moe_layers(model) == []
    assert sparse_moe(model, allow_partial=True).count == 0


def first_swish(model: ov.Model) -> ov.Node:
    return nodes_of_type(model, "Swish")[0]


def test_unknown_activation_names_the_layer_and_what_was_found() -> None:
    model = tiny_moe()
    swish = first_swish(model)
    name = moe_layers(model)[0].name
    relu = ops.relu(swish.input(0).get_source_output())
    relu.set_friendly_name("experts/relu")
    for port in list(swish.output(0).get_target_inputs()):
        port.replace_source_output(relu.output(0))
    with pytest.raises(
        ValueError, match=r"'experts/relu' stands where Swish .*1 of 2 .*allow_partial"
    ) as error:
        sparse_moe(model)
    assert name in str(error.value)


def test_another_swish_is_refused() -> None:
    model = tiny_moe()
    swish = first_swish(model)
    other = ops.swish(swish.input(0).get_source_output(), ops.constant(np.float32(1.5)))
    for port in list(swish.output(0).get_target_inputs()):
        port.replace_source_output(other.output(0))
    with pytest.raises(ValueError, match=r"Swish .* multiplies its input by 1.5"):
        sparse_moe(model)


def bias_inputs(model: ov.Model) -> list[ov.Input]:
    """Where the products of the experts get their biases."""
    found = []
    for add in nodes_of_type(model, "Add"):
        product = add.input(0).get_source_output().get_node()
        if product.get_type_name() == "MatMul" and len(product.input(1).get_partial_shape()) == 3:
            found.append(add.input(1))
    return found


def test_biases_in_bf16(exported_moe: ExportedMoE) -> None:
    """As a checkpoint in bf16 is exported; OpenVINO's NumPy view of such a constant is one of f16."""
    model, rng = exported_moe("gpt_oss", "int8"), np.random.default_rng(0)
    inputs = bias_inputs(model)
    assert len(inputs) == 2 * LAYERS
    for port in inputs:
        shape = port.get_shape()
        values = ov.op.Constant(ov.Type.bf16, shape, rng.standard_normal(shape).ravel().tolist())
        port.replace_source_output(ops.convert(values, ov.Type.f32).output(0))
    expected, _ = logits(model)
    sparse_moe(model)
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_biases_of_another_shape_are_refused(exported_moe: ExportedMoE) -> None:
    model = exported_moe("gpt_oss", "int8")
    port = bias_inputs(model)[0]
    port.replace_source_output(ops.constant(np.zeros(port.get_shape()[2], np.float32)).output(0))
    with pytest.raises(ValueError, match=r"biases .* are of shape .* beside weights of"):
        sparse_moe(model)


def test_partial_replaces_the_rest_and_reports() -> None:
    model = tiny_moe()
    swish = first_swish(model)
    name = moe_layers(model)[0].name
    gelu = ops.gelu(swish.input(0).get_source_output(), "erf")
    for port in list(swish.output(0).get_target_inputs()):
        port.replace_source_output(gelu.output(0))
    expected, _ = logits(model)
    report = sparse_moe(model, allow_partial=True)
    assert report.count == 1
    assert len(report.left) == 1 and report.left[0].startswith(name) and "Gelu" in report.left[0]
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_router_without_known_experts_is_named() -> None:
    """Experts in another form, e.g. one by one in a loop, show by their router."""
    rows = ops.parameter([-1, 16], ov.Type.f32, name="rows")
    best = ops.topk(ops.softmax(rows, -1), ops.constant(np.array(2)), -1, "max", "value")
    best.set_friendly_name("model.layers.0.router")
    model = ov.Model([ops.result(best.output(0))], [rows], "router")
    with pytest.raises(ValueError, match=r"layer model\.layers\.0\.router: a router whose experts"):
        sparse_moe(model)
    assert sparse_moe(model, allow_partial=True).left == (
        "model.layers.0.router: a router whose experts have a form that is not known",
    )
