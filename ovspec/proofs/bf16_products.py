"""OpenVINO's own products at an inference precision of bf16, compared with f64.

openvino#38256 reports wrong ones on a Zen 5 without AMX. The numbers are small integers times powers of two:
bf16 holds them as they are, also weights of int8 times their scales, and f32 holds their sums. What may
differ is one rounding of the result to bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec.devices.devices import openvino_core
from ovspec_ops.self_check import CheckResult

# Outputs and inputs: of a head, two that no vector divides, and of the layer in that report. Inputs are even,
# as in every model: of an odd number the plugin's products with int8 weights are wrong in passes of 5 rows
# and more (2026.4.1, on a Zen 5).
_SIZES = ((64, 64), (33, 130), (70, 602), (3072, 1024))
_ROWS = (1, 2, 9, 64)
#: How weights lie in the graph; in the last form rows are bf16 in the graph itself.
FORMS = ("f32", "f16", "bf16", "int8", "bf16, bf16 rows")
_ONE_ROUNDING = 2.0**-8
PROPERTIES = {"INFERENCE_PRECISION_HINT": "bf16", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def check_bf16_products() -> list[CheckResult]:
    """The plugin's products of several shapes and forms of weights; none where the processor has no bf16."""
    core = openvino_core()
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return []
    return [check for form in FORMS for size in _SIZES for check in _check(core, form, *size)]


def _check(core: ov.Core, form: str, outputs: int, inputs: int) -> Iterator[CheckResult]:
    rng = np.random.default_rng(9)
    integers = np.clip(np.rint(40 * rng.standard_normal((outputs, inputs))), -127, 127)
    scale = float(2.0 ** -np.rint(np.log2(40 * inputs**0.5)))
    compiled = core.compile_model(product(integers, scale, form), "CPU", PROPERTIES)
    for count in _ROWS:
        rows = np.clip(np.rint(32 * rng.standard_normal((count, inputs))), -127, 127) / 32
        got = compiled([rows.astype(np.float32)])[0]
        error = relative_error(got, rows @ integers.T * scale)
        name = f"MatMul {form}: {count} x {inputs} x {outputs}"
        yield CheckResult(name, "OpenVINO", error, _ONE_ROUNDING)


def product(integers: NDArray[np.float64], scale: float, form: str) -> ov.Model:
    """Rows f32 times the transposed weights, which are constants of that form."""
    weights = (integers * scale).astype(np.float32)
    rows = ops.parameter([-1, weights.shape[1]], ov.Type.f32)
    factor: Any = rows
    if form == "int8":
        numbers = ops.convert(ops.constant((integers + 128).astype(np.uint8)), "f32")
        constant = ops.multiply(ops.subtract(numbers, np.float32(128)), np.float32(scale))
    elif form == "f32":
        constant = ops.constant(weights)
    elif form == "f16":
        constant = ops.convert(ops.constant(weights.astype(np.float16)), "f32")
    else:
        held = ov.Tensor(ov.Type.bf16, list(weights.shape))
        held.data.view(np.uint16)[...] = weights.view(np.uint32) >> 16  # the other bits are zero
        constant = ov.op.Constant(held)
        if form == "bf16":
            constant = ops.convert(constant, "f32")
        else:
            factor = ops.convert(rows, "bf16")
    result = ops.convert(ops.matmul(factor, constant, False, True), "f32")
    return ov.Model([result], [rows])


def relative_error(got: NDArray[Any], want: NDArray[np.float64]) -> float:
    """The largest difference, as a share of the result; infinite where one is not finite or not zero."""
    difference = np.abs(got.astype(np.float64) - want)
    share = np.divide(difference, np.abs(want), out=np.where(difference == 0, 0.0, np.inf), where=want != 0)
    return float(np.where(np.isfinite(got), share, np.inf).max())


def verdict_on_products(checks: Sequence[CheckResult], processor: str) -> str:
    """What `check_bf16_products` found, in a sentence."""
    if not checks:
        return f"OpenVINO's own bf16 products were not checked: {processor} has no bf16"
    wrong = [check for check in checks if not check.ok]
    if wrong:
        named = ", ".join(check.name for check in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        return (
            f"FAILED: OpenVINO's own bf16 products are wrong on {processor} in {len(wrong)} of {len(checks)} "
            f"checks ({named}), as in openvino#38256; run models with INFERENCE_PRECISION_HINT=f32"
        )
    return (
        f"OpenVINO's own bf16 products agree with f64 in all {len(checks)} checks, whose rows have an even "
        "number of values, as those of models do"
    )
