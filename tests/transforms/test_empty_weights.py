"""Products over no channels, which OpenVINO's CPU plugin leaves as the memory was."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from ovspec_transforms import fill_empty_weights


def mlp(channels: int) -> ov.Model:
    """`[rows, 8]` through a gated MLP with f16 weights, as optimum-intel exports them."""
    rows = ops.parameter([-1, 8], np.float32)

    def linear(inputs: ov.Node, *shape: int) -> ov.Node:
        weight = ops.convert(ops.constant(np.ones(shape, np.float16)), np.float32)
        return ops.matmul(inputs, weight, False, True)

    gate = ops.swish(linear(rows, channels, 8))
    return ov.Model([linear(ops.multiply(gate, linear(rows, channels, 8)), 8, channels)], [rows])


def test_the_sum_over_no_channels_is_zero() -> None:
    model = mlp(0)
    assert fill_empty_weights(model).count == 3
    result = ov.compile_model(model, "CPU")([np.ones((3, 8), np.float32)])[0]
    assert np.array_equal(result, np.zeros((3, 8), np.float32))
    assert fill_empty_weights(mlp(1)).count == 0


def test_products_without_a_weight_are_refused() -> None:
    rows, others = ops.parameter([-1, 0], np.float32), ops.parameter([0, 8], np.float32)
    model = ov.Model([ops.matmul(rows, others, False, False)], [rows, others])
    with pytest.raises(ValueError, match="multiplies over no channels"):
        fill_empty_weights(model)
