"""Which weights of a product our operations take."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.linear_weights import read_weights

OUT, INPUTS = 10, 24
KINDS = {
    "u8": (0, 256, ov.Type.u8),
    "i8": (-128, 128, ov.Type.i8),
    "u4": (0, 16, ov.Type.u4),
    "i4": (-8, 8, ov.Type.i4),
}


def stored(kind: str, values: NDArray[Any]) -> ov.Node:
    """A constant of 8 or 4 bits a value."""
    dtype = KINDS[kind][2]
    if kind.endswith("8"):
        return ops.constant(values.astype(dtype.to_dtype()))
    nibbles = (values.reshape(-1, 2) & 15).astype(np.uint8)
    tensor = ov.Tensor(dtype, ov.Shape(list(values.shape)))
    tensor.data.view(np.uint8).reshape(-1)[:] = nibbles[:, 0] | nibbles[:, 1] << 4
    return ov.op.Constant(tensor)


def compressed(kind: str, groups: int) -> tuple[ov.Node, NDArray[np.float64]]:
    """A product as NNCF compresses it, and the values of its weights `[out, in]`."""
    rng = np.random.default_rng(1)
    low, high, _ = KINDS[kind]
    shape = (OUT, INPUTS) if groups == 1 else (OUT, groups, INPUTS // groups)
    each = (*shape[:-1], 1)
    values = rng.integers(low, high, shape)
    scales = rng.uniform(0.01, 0.02, each).astype(np.float16)
    zero_points = np.zeros(each, np.int64)
    node = ops.convert(stored(kind, values), "f16")
    if kind.startswith("u"):
        zero_points = rng.integers(low, high, each)
        node = ops.subtract(node, ops.convert(stored(kind, zero_points), "f16"))
    node = ops.multiply(node, ops.constant(scales))
    if groups > 1:
        node = ops.reshape(node, np.array([OUT, INPUTS], np.int64), special_zero=False)
    rows = ops.parameter([-1, INPUTS], ov.Type.f32, name="rows")
    product = ops.matmul(rows, ops.convert(node, "f32"), False, True)
    return product, ((values - zero_points) * scales.astype(np.float64)).reshape(OUT, INPUTS)


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_our_operations_take_one_scale_a_neuron_with_8_bits(kind: str) -> None:
    assert read_weights(compressed(kind, 1)[0], "down").groups == 1
    assert read_weights(compressed(kind[0] + "4", 3)[0], "down").groups == 3
    with pytest.raises(UnknownPatternError, match=f"weights of down of type {kind} have 3 scales a neuron"):
        read_weights(compressed(kind, 3)[0], "down")
