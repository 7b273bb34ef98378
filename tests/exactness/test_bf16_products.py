"""OpenVINO's own products in bf16: what the self-check compares is bf16, and it notices what is wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from commands import ovspec

from ovspec.proofs import bf16_products
from ovspec.proofs.bf16_products import (
    FORMS,
    PROPERTIES,
    check_bf16_products,
    product,
    relative_error,
    verdict_on_products,
)

needs_bf16 = pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    reason="the processor has no bf16",
)


@needs_bf16
@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_weight_is_noticed(form: str) -> None:
    """And a row that bf16 does not hold is rounded, so that the products are of bf16."""
    rng = np.random.default_rng(1)
    integers = rng.integers(-127, 127, (33, 130)).astype(np.float64)
    compiled = ov.Core().compile_model(product(integers, 2.0**-9, form), "CPU", PROPERTIES)
    rows = np.rint(32 * rng.standard_normal((9, 130))) / 32
    got = compiled([rows.astype(np.float32)])[0]
    if relative_error(got, rows @ integers.T * 2.0**-9) > 2.0**-8:
        pytest.skip("OpenVINO's products are wrong on this processor, as the self-check says")
    integers[7, 129] += 64
    assert relative_error(got, rows @ integers.T * 2.0**-9) > 2.0**-8
    rounded = compiled([(rows * (1 + 2.0**-12)).astype(np.float32)])[0]
    assert np.array_equal(got, rounded)


@pytest.mark.slow
@needs_bf16
def test_a_wrong_product_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin computes, with weights that are not those of the reference."""

    def shifted(integers: np.ndarray, scale: float, form: str) -> ov.Model:
        return product(integers + (form == "int8"), scale, form)

    monkeypatch.setattr(bf16_products, "product", shifted)
    run = ovspec("info", "--self-check")
    said = run.stdout.splitlines()[-1]
    assert run.returncode == 1
    wrong = re.search("FAILED: OpenVINO's own bf16 products are wrong on .* in ([0-9]+) of 80 checks", said)
    assert wrong is not None and int(wrong[1]) >= 16  # those of int8
    assert said.endswith("run models with INFERENCE_PRECISION_HINT=f32")


def test_results_that_are_no_numbers_are_wrong() -> None:
    want = np.array([1.0, 0.0])
    assert relative_error(np.float32([1.0, 0.0]), want) == 0
    for wrong in ([np.nan, 0.0], [np.inf, 0.0], [1.0, 1e-9]):
        assert relative_error(np.float32(wrong), want) == np.inf


def test_verdicts() -> None:
    assert "not checked: Old CPU has no bf16" in verdict_on_products([], "Old CPU")
    checks = check_bf16_products()
    if checks:
        wrong = [*checks, replace(checks[0], error=float("nan"))]
        assert verdict_on_products(wrong, "New CPU").startswith("FAILED: ")
