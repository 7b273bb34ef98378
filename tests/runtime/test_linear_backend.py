"""Which operation computes linear layers, and that a pipeline says the same with ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from settings import F32
from transforms.ffn_models import LAYERS, tiny_dense

import ovspec_ops
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.ffn_budgets import FfnConfig
from ovspec.runtime.linear_backend import default_linear
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows

# Rows of 16 bits in all layers; bf16 would be off by some 1e-2.
TOLERANCE = 1e-3
EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}  # of the reference
# Smaller groups than those of our rows of 8 bits: it keeps 16 on every processor.
FINE = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "16"}
PROMPT, DRAFT = np.arange(40) % 96, np.array([7, 3, 50, 21, 90])


def make_runner(linear: Any, weight_format: str = "int8", attention: Any = "native") -> ModelRunner:
    model = tiny_dense(weight_format)
    properties = EXACT if linear == "stock" else FINE
    return ModelRunner(model, "CPU", AttentionConfig(attention), properties, linear=linear)


def verify(runner: ModelRunner) -> np.ndarray:
    """Logits of five rows behind a prompt."""
    sequence = CachedSequence()
    runner.prefill(sequence, PROMPT, chunk=512)
    logits = runner.forward([Rows(sequence, DRAFT, sampled=5)]).copy()
    runner.release(sequence)
    return logits


@pytest.mark.parametrize("attention", ["native", "stock"])
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_a_pass_computes_what_stock_does(weight_format: str, attention: str) -> None:
    expected = verify(make_runner("stock", weight_format, attention))
    runner = make_runner("native", weight_format, attention)
    assert runner.reports[-1].require(7 * LAYERS + 1).name == "NativeLinear"
    assert np.abs(verify(runner) - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_channels_are_limited_beside_it() -> None:
    limits = FfnConfig(density=0.25)
    runners = [
        ModelRunner(tiny_dense(), "CPU", AttentionConfig(), properties, ffn=limits, linear=linear)
        for linear, properties in (("stock", EXACT), ("native", FINE))
    ]
    expected, got = (verify(runner) for runner in runners)
    assert np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize(
    ("isa", "given", "expected"),
    [
        ("amx", {}, "native"),
        ("amx", {"device": "GPU"}, "stock"),
        ("amx", {"attention": "stock"}, "stock"),
        ("amx", {"plugin_defaults": True}, "stock"),
        ("amx", {"properties": {"INFERENCE_PRECISION_HINT": "f32"}}, "native"),
        ("amx", {"properties": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}}, "stock"),
        ("amx", {"properties": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "32"}}, "stock"),
        ("amx", {"properties": {"EXECUTION_MODE_HINT": "ACCURACY"}}, "stock"),
        ("avx512vnni", {}, "native"),
        ("avx512vnni", {"properties": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}}, "stock"),
        ("avx2vnni", {}, "native"),
        ("avx512", {}, "stock"),
        ("avx2", {}, "stock"),
    ],
)
def test_the_default(monkeypatch: pytest.MonkeyPatch, isa: str, given: dict[str, Any], expected: str) -> None:
    monkeypatch.setattr(ovspec_ops, "active_isa", lambda: isa)
    settings = {"attention": "native", "device": "CPU", "properties": {}, "plugin_defaults": False} | given
    assert default_linear(**settings) == expected


def test_our_operation_needs_a_cpu() -> None:
    with pytest.raises(ValueError, match="native linear run on CPU only; pass linear='stock'"):
        ModelRunner(tiny_dense(), "GPU", AttentionConfig("stock"), F32, linear="native")


@pytest.mark.parametrize(
    ("name", "value"), [("DYNAMIC_QUANTIZATION_GROUP_SIZE", 0), ("EXECUTION_MODE_HINT", "ACCURACY")]
)
def test_ours_beside_exact_rows_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"linear='native' with {name}={value}: .* leave one of them out"):
        ModelRunner(tiny_dense(), "CPU", properties={**F32, name: value}, linear="native")


def test_a_model_that_has_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"linear='native': .* \(its weights are not compressed\)"):
        make_runner("native", "fp16")


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="linear='fast': expected 'native' or 'stock'"):
        make_runner("fast")
