"""Helpers of the passes."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import evaluate


def layers(x: ov.Node, count: int) -> ov.Node:
    """As many residual layers, from whose last one 2**count ways lead to `x`."""
    for _ in range(count):
        x = ops.add(x, ops.relu(x))
    return x


def test_only_what_depends_on_constants_alone_has_a_value() -> None:
    value = evaluate(layers(ops.constant(np.array([1.0, -3.0], np.float32)), 3))
    assert value is not None
    assert value.data.tolist() == [8.0, -3.0]
    for shape in ([1, 2], [1, -1]):
        assert evaluate(layers(ops.parameter(shape, np.float32), 200)) is None
