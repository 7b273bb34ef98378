"""Gated MLPs in parts of their channels, with stock operations: what is computed, and what is left out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from transforms.conftest import ExportedDense
from transforms.ffn_models import CHANNELS, FAMILIES, HIDDEN, LAYERS, tiny_dense
from transforms.moe_models import EXACT, logits

from ovspec_transforms import (
    GroupEstimate,
    ffn_layers,
    group_ffn_channels,
    leading_parts,
    sparse_ffn,
    to_paged,
    watch_contributions,
)
from ovspec_transforms.graph import nodes_of_type

GROUPS, BLOCK = 4, 32  # of the channels; channels that share a scale in int4
EXPORTED = [(family, fmt) for family in FAMILIES for fmt in ("f32", "int4")] + [
    ("qwen3", fmt) for fmt in ("f16", "int8", "int8_sym", "int4_sym")
]


def parts_of(groups: int = GROUPS) -> list[NDArray[np.int32]]:
    """Every block's channels dealt out, so that each part has as many of it."""
    dealt = np.random.default_rng(0).permuted(np.arange(CHANNELS).reshape(-1, BLOCK), axis=1)
    return [np.sort(part.reshape(-1)).astype(np.int32) for part in np.split(dealt, groups, 1)]


def estimate(groups: int = GROUPS, seed: int = 1) -> GroupEstimate:
    rng = np.random.default_rng(seed)
    probes = rng.permutation(CHANNELS)[:6].astype(np.int32)
    weights, bias = rng.standard_normal((6, groups)), rng.standard_normal(groups)
    return GroupEstimate(probes, weights.astype(np.float32), 0.1 * bias.astype(np.float32))


def grouped(model: ov.Model, estimates: bool) -> ov.Model:
    report = group_ffn_channels(model, [parts_of()] * LAYERS, [estimate()] * LAYERS if estimates else None)
    assert report.count == LAYERS
    return model


def limited(*limits: float) -> dict[str, Any]:
    return {"verify_channel_limits": np.array(limits, np.float32)}


def assert_same(expected: np.ndarray, got: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()


def masked(model: ov.Model, kept: list[NDArray[np.int32]]) -> ov.Model:
    """The model with the inner activations of all other channels set to zero."""
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    for layer in ffn_layers(model):
        mask = np.zeros(CHANNELS, np.float32)
        mask[kept[layer.index]] = 1
        inner = nodes[layer.name].input(0)
        inner.replace_source_output(ops.multiply(inner.get_source_output(), mask).output(0))
    return model


@pytest.mark.parametrize(("family", "weight_format"), EXPORTED)
def test_exported_models_compute_what_stock_does(
    exported_dense: ExportedDense, family: str, weight_format: str
) -> None:
    expected, _ = logits(exported_dense(family, weight_format))
    model = grouped(exported_dense(family, weight_format), estimates=False)
    got, _ = logits(model, **limited(-1, -1))
    assert_same(expected, got)


@pytest.mark.parametrize("weight_format", ["int8", "int4", "fp16", "fp32"])
def test_parts_that_are_kept_are_what_is_computed(weight_format: str) -> None:
    expected, _ = logits(tiny_dense(weight_format))
    for estimates in (False, True):
        got, _ = logits(grouped(tiny_dense(weight_format), estimates), **limited(-1, CHANNELS))
        assert_same(expected, got)
    kept = [np.concatenate(parts_of()[:1]), np.concatenate(parts_of()[:3])]
    expected, _ = logits(masked(tiny_dense(weight_format), kept))
    got, _ = logits(grouped(tiny_dense(weight_format), estimates=False), **limited(24, 49))
    assert_same(expected, got)
    without, _ = logits(tiny_dense(weight_format))
    assert np.abs(without - expected).max() > 1e-3 * np.abs(without).max()


class Mlp:
    """One gated MLP with f32 weights, and what it computes by NumPy."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        shapes = {"gate": (CHANNELS, HIDDEN), "up": (CHANNELS, HIDDEN), "down": (HIDDEN, CHANNELS)}
        self.weights = {
            name: (rng.standard_normal(shape) / math.sqrt(shape[1])).astype(np.float32)
            for name, shape in shapes.items()
        }

    def model(self) -> ov.Model:
        rows = ops.parameter([-1, 1, HIDDEN], ov.Type.f32, name="rows")
        rows.output(0).set_names({"rows"})
        gate, up = (ops.matmul(rows, ops.constant(self.weights[n]), False, True) for n in ("gate", "up"))
        inner = ops.multiply(ops.swish(gate), up)
        output = ops.matmul(inner, ops.constant(self.weights["down"]), False, True)
        return ov.Model([ops.result(output)], [rows], "mlp")

    def gates(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        gate = rows.astype(np.float64) @ self.weights["gate"].T
        return gate / (1 + np.exp(-gate))

    def output(self, rows: NDArray[np.float32], kept: NDArray[np.int32]) -> NDArray[np.float64]:
        inner = self.gates(rows) * (rows.astype(np.float64) @ self.weights["up"].T)
        return inner[:, kept] @ self.weights["down"].T[kept]

    def choice(self, rows: NDArray[np.float32], by: GroupEstimate, count: int) -> list[int]:
        """The groups that the estimate says most of."""
        seen = np.abs(self.gates(rows)[:, by.probes]).mean(0)
        return sorted(np.argsort(-(seen @ by.weights + by.bias))[:count].tolist())


@pytest.fixture(scope="module")
def mlp() -> Mlp:
    return Mlp()


@pytest.mark.parametrize("rows", [1, 5])
def test_groups_are_those_that_the_estimate_says_most_of(mlp: Mlp, rows: int) -> None:
    by, model, parts = estimate(), mlp.model(), parts_of()
    group_ffn_channels(model, [parts], [by])
    request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    rng, choices = np.random.default_rng(3), set()
    for _ in range(6):
        x = rng.standard_normal((rows, HIDDEN)).astype(np.float32)
        for limit, count in ((1, 1), (48, 2), (49, 3), (CHANNELS, 4), (-1, 4)):
            request.infer({"rows": x[:, None], **limited(limit)})
            chosen = mlp.choice(x, by, count)
            expected = mlp.output(x, np.concatenate([parts[group] for group in chosen]))
            got = request.get_output_tensor(0).data
            assert got.shape == (rows, 1, HIDDEN)
            np.testing.assert_allclose(got[:, 0], expected, rtol=1e-4, atol=1e-5)
            assert request.get_tensor("channels_read").data.tolist() == [24 * count]
            if count == 2:
                choices.add(tuple(chosen))
    assert len(choices) > 1


def test_parts_without_rows_are_not_computed() -> None:
    mlp, parts = Mlp(), parts_of()
    rows = np.random.default_rng(5).standard_normal((3, HIDDEN)).astype(np.float32)
    expected = mlp.output(rows, np.concatenate(parts[:2]))
    for part in parts[2:]:
        for name, weights in mlp.weights.items():
            weights[(slice(None), part) if name == "down" else part] = np.nan
    model = mlp.model()
    group_ffn_channels(model, [parts])
    request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    request.infer({"rows": rows[:, None], **limited(48)})
    np.testing.assert_allclose(request.get_output_tensor(0).data[:, 0], expected, rtol=1e-4, atol=1e-5)
    request.infer({"rows": rows[:, None], **limited(-1)})
    assert np.isnan(request.get_output_tensor(0).data).all()


@pytest.mark.parametrize("weight_format", ["int8", "int4", "fp16"])
def test_weights_stay_compressed(weight_format: str) -> None:
    def held(model: ov.Model) -> int:
        return sum(node.get_byte_size() for node in nodes_of_type(model, "Constant"))

    before = held(tiny_dense(weight_format))
    model = grouped(tiny_dense(weight_format), estimates=False)
    # In int4, blocks of scales are shorter by the number of parts in the down projection.
    assert held(model) <= 1.1 * before
    kind = {"int8": "u8", "int4": "u4", "fp16": "f16"}[weight_format]
    compiled = ov.Core().compile_model(model, "CPU", EXACT).get_runtime_model()
    found = [
        node.get_rt_info()["runtimePrecision"].astype(str)
        for node in compiled.get_ops()
        if node.get_rt_info()["layerType"].astype(str) == "FullyConnected"
    ]
    assert found.count(kind) >= 3 * GROUPS * LAYERS


def test_paged_models_too() -> None:
    for first in (True, False):
        model = tiny_dense("int4")
        if first:
            to_paged(model)
        grouped(model, estimates=True)
        if not first:
            assert to_paged(model).count == LAYERS


def test_a_layer_in_one_part_stays_as_it_is() -> None:
    model, whole = tiny_dense(), [np.arange(CHANNELS, dtype=np.int32)]
    expected, _ = logits(tiny_dense())
    assert group_ffn_channels(model, [whole, parts_of()]).count == 1
    got, _ = logits(model, **limited(24, -1))
    assert_same(expected, got)


@pytest.mark.parametrize(
    ("share", "blocks", "first"), [(0.5, 3, 48), (0.25, 1, 24), (0.001, 3, 3), (1.0, 3, 96)]
)
def test_leading_parts(share: float, blocks: int, first: int) -> None:
    order = np.random.default_rng(4).permutation(CHANNELS).astype(np.int32)
    parts = leading_parts(order, share, blocks)
    assert [len(part) for part in parts] == [count for count in (first, CHANNELS - first) if count]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(CHANNELS))
    size, place = CHANNELS // blocks, np.argsort(order)
    for block in range(blocks):
        mine = np.arange(block * size, (block + 1) * size)
        best = mine[np.argsort(place[mine])][: first // blocks]
        assert np.array_equal(np.sort(best), parts[0][parts[0] // size == block])


def test_blocks_of_channels() -> None:
    assert [ffn_layers(tiny_dense(fmt))[0].blocks for fmt in ("int4", "int8", "fp32")] == [3, 1, 1]


@pytest.mark.parametrize("weight_format", ["int8", "int4", "fp16"])
def test_contributions_are_what_channels_add(weight_format: str) -> None:
    model = tiny_dense(weight_format)
    watch_contributions(model)
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    down = nodes[ffn_layers(model)[1].name]
    for name, output in (
        ("inner", down.input(0).get_source_output()),
        ("weights", down.input(1).get_source_output()),
    ):
        named = ops.convert(output, ov.Type.f32)
        named.output(0).set_names({name})
        model.add_results([ops.result(named)])
    request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    request.infer(
        {
            "input_ids": np.arange(5)[None],
            "attention_mask": np.ones((1, 5), np.int64),
            "position_ids": np.arange(5)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )
    inner = request.get_tensor("inner").data.reshape(5, CHANNELS).astype(np.float64)
    added = inner[:, None] * request.get_tensor("weights").data  # [rows, hidden, channels]
    energies = request.get_tensor("channel_energies.1").data
    np.testing.assert_allclose(energies, (added**2).sum((0, 1)), rtol=2e-3, atol=1e-6)
    assert request.get_tensor("channel_gates.1").data.shape == (CHANNELS,)


_GOOD = [parts_of()] * LAYERS
_UNEVEN = [np.arange(begin, begin + 24, dtype=np.int32) for begin in range(0, CHANNELS, 24)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": _GOOD[:1]}, "parts of 1 layers, expected 2"),
        ({"parts": [parts_of()[:2]] * 2}, "do not hold each of its 96 channels once"),
        ({"parts": [[*parts_of(), np.zeros(0, np.int32)]] * 2}, "do not hold each of its 96 channels once"),
        ({"parts": [_UNEVEN] * 2}, "32 channels share a scale, and a part takes 24 of some and 0 of others"),
        ({"parts": _GOOD, "estimates": [estimate()]}, "estimates of 1 layers, expected 2"),
        (
            {"parts": _GOOD, "estimates": [estimate(3)] * 2},
            r"weights \[6, 3\] and bias \[3\], expected \[6, 4\]",
        ),
        (
            {"parts": [[parts_of()[0], np.concatenate(parts_of()[1:])]] * 2, "estimates": [estimate(2)] * 2},
            "are not of one size",
        ),
        (
            {
                "parts": _GOOD,
                "estimates": [GroupEstimate(np.array([96], np.int32), np.ones((1, 4)), np.ones(4))] * 2,
            },
            "expected some of its 96 channels",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        group_ffn_channels(tiny_dense("int4"), **arguments)
    assert "\n" not in str(caught.value)


def test_models_without_stock_mlps_are_refused() -> None:
    model = tiny_dense()
    sparse_ffn(model)
    with pytest.raises(ValueError, match="is our operation, whose channels can't be grouped"):
        group_ffn_channels(model, _GOOD)
    rows = ops.parameter([-1, 16], ov.Type.f32, name="rows")
    plain = ov.Model([ops.result(ops.relu(rows))], [rows], "plain")
    with pytest.raises(ValueError, match="no gated MLP of a known form"):
        group_ffn_channels(plain, [])
