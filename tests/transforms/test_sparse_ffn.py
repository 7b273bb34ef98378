"""The gated MLPs of dense models as GatedMLP, and their limits."""

from __future__ import annotations

import gc
import re
from itertools import product
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from tiers import by_tier
from transforms.conftest import ExportedDense
from transforms.ffn_models import CHANNELS, FAMILIES, HIDDEN, LAYERS, tiny_dense
from transforms.moe_models import EXACT, assert_same_logits, logits

import ovspec_ops
from ovspec_transforms import ffn_layers, limit_channels, round_rows, sparse_ffn, to_paged
from ovspec_transforms.graph import nodes_of_type

# The form of the weights does not depend on the family, so one family is enough.
EXPORTED = [(family, fmt) for family in FAMILIES for fmt in ("f32", "int8", "int4")] + [
    ("qwen3", fmt) for fmt in ("f16", "int8_sym", "int4_sym")
]


@pytest.mark.parametrize(
    ("family", "weight_format"),
    by_tier(EXPORTED, [("qwen3", "int8"), ("qwen3", "f32"), ("phi3", "int4"), ("gelu", "int4")]),
)
def test_exported_models_compute_what_stock_does(
    exported_dense: ExportedDense, family: str, weight_format: str
) -> None:
    expected, _ = logits(exported_dense(family, weight_format))
    model = exported_dense(family, weight_format)
    assert sparse_ffn(model).require(LAYERS).left == ()
    assert not nodes_of_type(model, "Swish") and not nodes_of_type(model, "Gelu")
    got, _ = logits(model)
    assert_same_logits(expected, got)


@pytest.mark.parametrize("weight_format", ["int8", "int4", "fp16", "fp32"])
def test_synthetic_models(weight_format: str) -> None:
    expected, _ = logits(tiny_dense(weight_format))
    model = tiny_dense(weight_format)
    sparse_ffn(model).require(LAYERS)
    got, _ = logits(model)
    assert_same_logits(expected, got)


@pytest.mark.parametrize(
    ("family", "weight_format"),
    by_tier(
        product(FAMILIES, ["int8", "int4", "f32"]), [("qwen3", "f32"), ("phi3", "int4"), ("gelu", "int8")]
    ),
)
def test_gates_for_another_operation(exported_dense: ExportedDense, family: str, weight_format: str) -> None:
    """Phi-3's gate shares its product with up: it is taken along."""
    expected, _ = logits(exported_dense(family, weight_format))
    model = exported_dense(family, weight_format)
    sparse_ffn(model, gates_apart=True).require(LAYERS)
    formats = {node.get_attributes()["gate_format"] for node in nodes_of_type(model, "GatedMLP")}
    assert ("values" in formats) == (family != "phi3")
    assert [layer.channels for layer in ffn_layers(model)] == [CHANNELS] * LAYERS
    got, _ = logits(model)
    assert_same_logits(expected, got)


def test_channels_matter_in_these_models() -> None:
    """Else the comparisons of logits above would pass with any of them."""
    expected, _ = logits(tiny_dense("fp32"))
    model = tiny_dense("fp32")
    sparse_ffn(model)
    limit_channels(model)
    limits = {
        "verify_channel_limits": np.full(LAYERS, 0.9 * CHANNELS, np.float32).round(),
        "verify_row_weights": np.ones(9, np.float32),
    }
    got, _ = logits(model, **limits)
    assert np.abs(got - expected).max() > 1e-3 * np.abs(expected).max()


def test_limits_hold_for_the_rows_that_they_are_for() -> None:
    expected, _ = logits(tiny_dense())
    model = tiny_dense()
    sparse_ffn(model)
    assert limit_channels(model).count == LAYERS
    compiled = ov.Core().compile_model(model, "CPU", EXACT)
    request = compiled.create_infer_request()

    def read(limits: list[float], weights: list[float]) -> tuple[list[int], np.ndarray]:
        request.reset_state()
        request.infer(
            {
                "input_ids": np.random.default_rng(0).integers(0, 96, (1, 9)),
                "attention_mask": np.ones((1, 9), np.int64),
                "position_ids": np.arange(9)[None],
                "beam_idx": np.zeros(1, np.int32),
                "verify_channel_limits": np.array(limits, np.float32),
                "verify_row_weights": np.array(weights, np.float32),
            }
        )
        return request.get_tensor("channels_read").data.tolist(), request.get_tensor("logits").data.copy()

    ones, kept = [1.0] * 9, [20.0, 40.0]
    counts, dense = read([-1.0, -1.0], ones)
    assert counts == [CHANNELS, CHANNELS]
    assert_same_logits(expected, dense)
    counts, _ = read(kept, ones)
    assert counts == [20, 40]
    counts, spared = read(kept, [0.0] * 9)
    assert counts == [CHANNELS, CHANNELS]
    assert np.array_equal(spared, dense)


def test_layers_are_listed_before_and_after() -> None:
    model = tiny_dense("int4")
    before = ffn_layers(model)
    assert [(x.index, x.channels, x.hidden, x.native) for x in before] == [
        (n, CHANNELS, HIDDEN, False) for n in range(LAYERS)
    ]
    sparse_ffn(model)
    after = ffn_layers(model)
    assert [layer.name for layer in after] == [layer.name for layer in before]
    assert all(layer.native for layer in after)


def test_paged_models_too() -> None:
    for first, second in ((to_paged, sparse_ffn), (sparse_ffn, to_paged)):
        model = tiny_dense("int4")
        assert first(model).count == LAYERS
        assert second(model).count == LAYERS


def test_a_second_run_changes_nothing() -> None:
    model = tiny_dense()
    sparse_ffn(model)
    assert sparse_ffn(model).count == 0
    assert len(nodes_of_type(model, "GatedMLP")) == LAYERS


def test_saved_model_computes_the_same(tmp_path: Path) -> None:
    model = tiny_dense("int4")
    sparse_ffn(model)
    expected, _ = logits(model)
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    core = ov.Core()
    ovspec_ops.load(core)
    got, _ = logits(core.read_model(tmp_path / "model.xml"))
    assert np.array_equal(expected, got)


def test_bits_of_rows_travel_with_the_model(tmp_path: Path) -> None:
    def bits(model: ov.Model) -> list[int]:
        return [node.get_attributes()["row_bits"] for node in nodes_of_type(model, "GatedMLP")]

    model = tiny_dense("int4")
    sparse_ffn(model)
    assert bits(model) == [16] * LAYERS
    assert round_rows(model, 8).count == LAYERS
    assert round_rows(model, 8).count == 0
    limit_channels(model)
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    core = ov.Core()
    ovspec_ops.load(core)
    assert bits(core.read_model(tmp_path / "model.xml")) == [8] * LAYERS
    with pytest.raises(ValueError, match="row bits 4: expected 8, 16 or 32"):
        round_rows(model, 4)


@pytest.mark.parametrize("weight_format", ["fp16", "int8"])
def test_gate_and_up_stay_in_their_memory(weight_format: str) -> None:
    """A mapped file stays mapped: the operation's constant is the model's own memory."""
    model = tiny_dense(weight_format)

    def address(node: ov.Node) -> int:
        return int(node.data.__array_interface__["data"][0])

    before = {address(node) for node in nodes_of_type(model, "Constant")}
    sparse_ffn(model)
    gc.collect()
    for operation in nodes_of_type(model, "GatedMLP"):
        for position in (1, 4):
            assert address(operation.input(position).get_source_output().get_node()) in before


def test_other_gate_names_the_layer_and_what_was_found() -> None:
    model = tiny_dense()
    swish = nodes_of_type(model, "Swish")[0]
    relu = ops.relu(swish.input(0).get_source_output())
    relu.set_friendly_name("mlp/relu")
    swish.input(0).replace_source_output(relu.output(0))
    with pytest.raises(
        ValueError, match=r"Relu 'mlp/relu' stands where the gate .*1 of 2 .*allow_partial"
    ) as error:
        sparse_ffn(model)
    report = sparse_ffn(model, allow_partial=True)
    assert len(report.left) == 1 and "mlp/relu" in report.left[0]
    assert report.left[0].split(":")[0] in str(error.value)
    assert len(nodes_of_type(model, "GatedMLP")) == LAYERS - 1


def test_model_without_gated_mlp_is_refused() -> None:
    rows = ops.parameter([-1, 16], ov.Type.f32, name="rows")
    model = ov.Model([ops.result(ops.relu(rows))], [rows], "plain")
    with pytest.raises(ValueError, match="the model has no gated MLP"):
        sparse_ffn(model)
    assert sparse_ffn(model, allow_partial=True).count == 0
    with pytest.raises(ValueError, match="run sparse_ffn"):
        limit_channels(model)


@pytest.mark.parametrize("form", ["GELU", "GELU, reshaped", "squared ReLU", "gated by ReLU"])
def test_feed_forward_layers_that_nothing_known_gates_are_named(form: str) -> None:
    """As in Falcon and StarCoder2; in GPT-2; in Nemotron; in models of other gates."""
    rows = ops.parameter([-1, 16], ov.Type.f32, name="rows")
    up, gate, down = (ops.constant(np.ones(shape, np.float32)) for shape in ((24, 16), (24, 16), (16, 24)))
    inner = ops.matmul(rows, up, False, True)
    activated = ops.gelu(inner, "erf") if "GELU" in form else ops.relu(inner)
    activated.set_friendly_name("mlp/act")
    if form == "squared ReLU":
        activated = ops.power(activated, ops.constant(np.float32(2)))
    elif form == "GELU, reshaped":
        activated = ops.reshape(activated, ops.constant(np.array([-1, 24])), False)
    elif form == "gated by ReLU":
        activated = ops.multiply(ops.matmul(rows, gate, False, True), activated)
    last = ops.matmul(activated, down, False, True)
    last.set_friendly_name("layers.0/down")
    model = ov.Model([ops.result(last)], [rows], "plain")
    line = r"layers\.0/down: \w+ 'mlp/act' stands where SiLU or GELU of a gate, times up, was expected"
    with pytest.raises(ValueError, match=rf"layer {line}; 1 of 1 feed-forward layers .*--allow-partial"):
        sparse_ffn(model)
    report = sparse_ffn(model, allow_partial=True)
    assert report.count == 0 and len(report.left) == 1 and re.fullmatch(line, report.left[0])


def test_limits_need_the_operation() -> None:
    with pytest.raises(ValueError, match="no GatedMLP operation to limit"):
        limit_channels(tiny_dense())
