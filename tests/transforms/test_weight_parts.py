"""Parts of a product's weights: the values that they stand for, in the form that they were stored in."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from transforms.moe_models import EXACT

from ovspec_transforms import WeightParts
from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.linear_weights import read_weights

OUT, INPUTS = 10, 24
KINDS = {
    "u8": (0, 256, ov.Type.u8),
    "i8": (-128, 128, ov.Type.i8),
    "u4": (0, 16, ov.Type.u4),
    "i4": (-8, 8, ov.Type.i4),
}
ROWS = np.array([7, 0, 3], np.int32)
COLUMNS = np.array([1, 2, 8, 15, 17, 23], np.int32)  # as many of each third


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


def evaluated(node: ov.Node) -> NDArray[np.float32]:
    empty = ov.Model([ops.result(node)], [], "weights")
    request = ov.Core().compile_model(empty, "CPU", EXACT).create_infer_request()
    request.infer()
    return np.array(request.get_output_tensor(0).data)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_values_and_the_type_of_the_whole(kind: str, groups: int) -> None:
    product, values = compressed(kind, groups)
    parts = WeightParts.of(product, "down")
    assert parts.blocks == groups
    for part, expected in (
        (parts, values),
        (parts.rows(ROWS), values[ROWS]),
        (parts.columns(COLUMNS), values[:, COLUMNS]),
    ):
        node = part.node()
        np.testing.assert_allclose(evaluated(node), expected, rtol=2e-3, atol=1e-4)
        found = set()
        while node.get_input_size():
            node = node.input(0).get_source_output().get_node()
            found.add(node.get_type_name())
        assert node.get_element_type() == KINDS[kind][2]
        assert ("Subtract" in found) == kind.startswith("u")
    norms = np.linalg.norm(values, axis=0)
    np.testing.assert_allclose(parts.column_norms(), norms, rtol=1e-5)


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_our_operations_take_one_scale_a_neuron_with_8_bits(kind: str) -> None:
    assert read_weights(compressed(kind, 1)[0], "down").groups == 1
    assert read_weights(compressed(kind[0] + "4", 3)[0], "down").groups == 3
    with pytest.raises(UnknownPatternError, match=f"weights of down of type {kind} have 3 scales a neuron"):
        read_weights(compressed(kind, 3)[0], "down")
