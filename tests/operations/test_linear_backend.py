"""Which operation computes linear layers, and that a pipeline's text is the same with ours."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import openvino as ov
import pytest
from commands import command
from settings import F32
from transforms.ffn_models import LAYERS, tiny_dense

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.operations.linear_backend import linear_backend
from ovspec.operations.row_rounding import arithmetic
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_transforms import TransformReport

# Rows of 16 bits in all layers; bf16 would be off by some 1e-2.
TOLERANCE = 1e-3
EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}  # of the reference
# The groups are smaller than those of our rows of 8 bits, so rows keep 16 bits on every processor.
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
    logits = runner.forward([Rows(sequence, DRAFT, sampled=5)]).logits.copy()
    runner.release(sequence)
    return logits


def replaced(runner: ModelRunner) -> TransformReport:
    """By `Linear`."""
    return next(report for report in runner.reports if report.name == "NativeLinear")


@pytest.mark.parametrize("attention", ["native", "stock"])
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_a_pass_computes_what_stock_does(weight_format: str, attention: str) -> None:
    expected = verify(make_runner("stock", weight_format, attention))
    runner = make_runner("native", weight_format, attention)
    assert replaced(runner).count == 7 * LAYERS + 1
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
    ("given", "expected"),
    [
        ({}, "native"),
        ({"device": "GPU"}, "stock"),
        ({"attention": "stock"}, "stock"),
        ({"plugin_defaults": True}, "stock"),
        ({"device": "GPU", "asked": "native"}, "native"),
        ({"asked": "stock"}, "stock"),
    ],
)
def test_the_default(given: dict[str, Any], expected: str) -> None:
    """On every processor: no row of ours depends on the others."""
    settings = {"asked": None, "attention": "native", "device": "CPU", "plugin_defaults": False} | given
    assert linear_backend(**settings) == expected


def test_our_operation_needs_a_cpu() -> None:
    with pytest.raises(ValueError, match="native linear run on CPU only; pass linear='stock'"):
        ModelRunner(tiny_dense(), "GPU", AttentionConfig("stock"), F32, linear="native")


@pytest.mark.parametrize(
    ("name", "value"), [("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"), ("EXECUTION_MODE_HINT", "ACCURACY")]
)
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_rows_that_may_not_be_rounded_are_not(name: str, value: str, weight_format: str) -> None:
    properties = {**F32, name: value}
    runners = [
        ModelRunner(tiny_dense(weight_format), "CPU", properties=properties, linear=linear)
        for linear in ("stock", "native")
    ]
    assert runners[1].row_bits == 32
    expected, got = (verify(runner) for runner in runners)
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("weight_format", ["fp16", "fp32"])
def test_floating_point_weights_compute_what_stock_does(weight_format: str) -> None:
    models = [(tiny_dense(weight_format), linear) for linear in ("stock", None)]
    runners = [ModelRunner(model, "CPU", properties=F32, linear=linear) for model, linear in models]
    assert (replaced(runners[1]).count, replaced(runners[1]).left) == (7 * LAYERS + 1, ())
    expected, got = (verify(runner) for runner in runners)
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"INFERENCE_PRECISION_HINT": "f32"}, "f32"),
        ({"INFERENCE_PRECISION_HINT": ov.Type.f32}, "f32"),
        ({"EXECUTION_MODE_HINT": "ACCURACY"}, "f32"),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, "bf16"),
        ({"INFERENCE_PRECISION_HINT": "bf16", "EXECUTION_MODE_HINT": "ACCURACY"}, "bf16"),
    ],
)
def test_the_inference_precision_decides_the_arithmetic(properties: dict[str, Any], expected: str) -> None:
    if expected == "bf16" and "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no bf16")
    assert arithmetic(properties) == expected


@pytest.mark.parametrize("most", ["DEFAULT", "AVX2"])
def test_without_a_hint_the_arithmetic_is_that_of_a_compiled_model(most: str) -> None:
    """The plugin's default is read without a model; a processor of fewer instruction sets has another."""
    code = (
        "from ovspec.devices.devices import openvino_core, smallest_model\n"
        "from ovspec.operations.row_rounding import arithmetic\n"
        "found = arithmetic({})\n"
        "compiled = openvino_core().compile_model(smallest_model(), 'CPU', {})\n"
        "hint = compiled.get_property('INFERENCE_PRECISION_HINT').get_type_name()\n"
        "print(found, 'bf16' if hint == 'bf16' else 'f32')"
    )
    ran = command(sys.executable, "-c", code, env={**os.environ, "ONEDNN_MAX_CPU_ISA": most})
    assert ran.returncode == 0, ran.stderr
    found, expected = ran.stdout.split()
    assert found == expected


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="linear='fast': expected 'native' or 'stock'"):
        make_runner("fast")
