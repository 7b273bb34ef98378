"""How far linear layers and gated MLPs round their rows, by settings and processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from settings import F32
from transforms.ffn_models import LAYERS, tiny_dense

import ovspec_ops
from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.operations.row_rounding import rounding_settings, row_bits
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_ops import loader
from ovspec_transforms import sparse_ffn
from ovspec_transforms.graph import nodes_of_type

EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@pytest.mark.parametrize(
    ("isa", "device", "properties", "expected"),
    [
        ("avx512vnni", "CPU", {}, 8),
        ("avx512vnni", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 8),
        ("avx512vnni", "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}, 8),
        ("avx512vnni", "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"}, 8),
        ("avx512vnni", "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 16}, 16),
        ("avx512vnni", "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}, 32),
        ("avx512vnni", "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"}, 32),
        ("avx512vnni", "GPU", {}, 16),
        ("avx2vnni", "CPU", {}, 8),
        ("avx512", "CPU", {}, 16),
        ("amx", "CPU", {}, 16),
        ("avx2", "CPU", {}, 16),
    ],
)
def test_the_rule(
    monkeypatch: pytest.MonkeyPatch, isa: str, device: str, properties: dict[str, Any], expected: int
) -> None:
    monkeypatch.setattr(ovspec_ops, "active_isa", lambda: isa)
    assert row_bits(device, properties) == expected


@pytest.fixture
def vnni() -> Any:
    """AVX-512 VNNI, where rows of 8 bits are taken."""
    if "avx512vnni" not in loader.available_isas():
        pytest.skip("this processor lacks avx512vnni")
    before = loader.active_isa()
    loader.set_isa("avx512vnni")
    yield
    loader.set_isa(before)


def runner_of(model: ov.Model, properties: dict[str, Any]) -> ModelRunner:
    return ModelRunner(model, "CPU", AttentionConfig(), properties, ffn=FfnConfig(), linear="stock")


def bits_of(runner: ModelRunner) -> set[int]:
    reports = [report for report in runner.reports if report.name == "RoundRows"]
    return {8} if reports and reports[0].count == LAYERS else {16}


def logits(runner: ModelRunner, rows: int) -> np.ndarray:
    """Logits of the last of `rows` rows after a prompt."""
    sequence = CachedSequence()
    runner.prefill(sequence, np.arange(40) % 96, chunk=512)
    draft = np.array([7, 3, 50, 21, 90])
    for first in range(0, 5, rows):
        out = runner.forward([Rows(sequence, draft[first : first + rows], sampled=rows)]).logits.copy()
    runner.release(sequence)
    return out[-1]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_a_runner_goes_by_the_users_settings(vnni: None, weight_format: str) -> None:
    """Rows computed one by one and together are equal, to the last bit of GatedMLP's output."""
    exact = runner_of(tiny_dense(weight_format), EXACT)
    rounded = runner_of(tiny_dense(weight_format), F32)
    assert (bits_of(exact), bits_of(rounded)) == ({16}, {8})
    together, alone = logits(rounded, 5), logits(rounded, 1)
    assert np.abs(together - alone).max() <= 1e-4 * np.abs(alone).max()
    assert not np.array_equal(logits(exact, 5), together)


def test_linear_layers_are_rounded_as_far(vnni: None) -> None:
    """Of a layer the products with the hidden states, with the heads' outputs, gate with up, and down."""
    runner = ModelRunner(tiny_dense(), "CPU", AttentionConfig(), F32)
    assert runner.linear == "native"
    assert [report.count for report in runner.reports if report.name == "RoundRows"] == [4 * LAYERS + 1]
    together, alone = logits(runner, 5), logits(runner, 1)
    assert np.abs(together - alone).max() <= 1e-4 * np.abs(alone).max()


def test_an_ir_keeps_its_bits_and_a_runner_sets_its_own(vnni: None, tmp_path: Path) -> None:
    """An exported operation takes 16 wherever it runs; ovspec knows the user's settings."""
    model = tiny_dense()
    sparse_ffn(model)
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    core = ov.Core()
    ovspec_ops.load(core)
    read = core.read_model(tmp_path / "model.xml")
    assert [node.get_attributes()["row_bits"] for node in nodes_of_type(read, "GatedMLP")] == [16] * LAYERS
    assert bits_of(runner_of(read, F32)) == {8}


@pytest.mark.parametrize(
    ("values", "bits"), [((0, "0", "0.0", " 0", "+0", "0x10", "some"), 32), ((16, "16.0", " 16"), 16)]
)
def test_spellings_of_small_groups(
    monkeypatch: pytest.MonkeyPatch, values: tuple[object, ...], bits: int
) -> None:
    monkeypatch.setattr(ovspec_ops, "active_isa", lambda: "avx512vnni")
    assert {row_bits("CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": value}) for value in values} == {bits}


def test_what_a_model_asks_for_counts_below_what_its_user_does(tmp_path: Path) -> None:
    name = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
    model = build_model(get_shape("qwen3-0.6b", layers=1, vocab_size=64), "int8")
    assert rounding_settings(model, None) == {}
    model.set_rt_info("0", ["runtime_options", name])
    ov.save_model(model, tmp_path / "openvino_model.xml")
    for asked in (model, tmp_path):
        assert rounding_settings(asked, None) == {name: "0"}
        assert rounding_settings(asked, {name: 64}) == {name: 64}
