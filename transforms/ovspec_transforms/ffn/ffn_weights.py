"""Weights of a gated MLP in the layouts of GatedMLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_ops.gated_mlp.layout import f16_bytes, pack_columns_u4, pack_columns_u8, pack_rows_u4
from ovspec_transforms.ffn.ffn_layers import Product
from ovspec_transforms.weights.expert_weights import shared_bytes
from ovspec_transforms.weights.linear_weights import LinearWeights, read_weights
from ovspec_transforms.weights.weight_memory import WeightMemory


@dataclass(frozen=True, slots=True)
class Projection:
    """Data, scales and zero points for GatedMLP, and their format's name."""

    tensors: tuple[ov.Output, ov.Output, ov.Output]
    fmt: str


def _constants(
    data: ov.Node, scales: NDArray[Any] | None, zero_points: NDArray[Any] | None, fmt: str
) -> Projection:
    if scales is None or zero_points is None:
        return Projection((data.output(0), _nothing(), _nothing()), fmt)
    bytes_of = ops.constant(f16_bytes(scales)).output(0)
    zero_bytes = ops.constant(np.ascontiguousarray(zero_points)).output(0)
    return Projection((data.output(0), bytes_of, zero_bytes), fmt)


def _nothing() -> ov.Output:
    return ops.constant(np.zeros((0,), np.uint8)).output(0)


def values_of(gate: ov.Node) -> Projection:
    """The results of the gate's product, which another operation computes."""
    return Projection((gate.output(0), _nothing(), _nothing()), "values")


def rows_of(product: Product, what: str, memory: WeightMemory) -> Projection:
    """Gate or up weights: each output neuron is a channel.

    Weights of 8 bits without a sign and of 16 and 32 bits stay where they are, mapped files included;
    others, and halves of a product, are copied.

    Raises:
        UnknownPatternError: weights of another form.
    """
    weights = read_weights(product.matmul, what)
    if product.half is not None:
        return _half_of(weights, product.half, memory)
    dtype, shape = weights.data.get_element_type(), (weights.out, weights.inputs)
    if dtype == ov.Type.f32:
        return _constants(weights.data, None, None, "f32")
    if dtype == ov.Type.f16:
        return _constants(shared_bytes(weights.data, (shape[0], 2 * shape[1])), None, None, "f16")
    if dtype == ov.Type.u8:
        same = weights.data.get_output_shape(0) == ov.Shape(list(shape))
        stored = weights.data if same else shared_bytes(weights.data, shape)
        return _constants(stored, weights.scales, weights.zero_points, "u8")
    if dtype == ov.Type.i8:
        return _constants(memory.constant(weights.values()), weights.scales, weights.zero_points, "u8")
    packed = pack_rows_u4(weights.values(), weights.groups)
    return _constants(memory.constant(packed), weights.scales, weights.zero_points, "u4")


def _half_of(weights: LinearWeights, half: int, memory: WeightMemory) -> Projection:
    rows = slice(half * weights.out // 2, (half + 1) * weights.out // 2)
    if weights.scales is None or weights.zero_points is None:
        values = np.ascontiguousarray(weights.data.data.reshape(weights.out, weights.inputs)[rows])
        if values.dtype == np.float16:
            return _constants(memory.constant(values.view(np.uint8)), None, None, "f16")
        return _constants(ops.constant(values), None, None, "f32")
    four_bits = weights.data.get_element_type() in (ov.Type.u4, ov.Type.i4)
    values = np.ascontiguousarray(weights.values()[rows])
    packed = pack_rows_u4(values, weights.groups) if four_bits else values
    fmt = "u4" if four_bits else "u8"
    return _constants(memory.constant(packed), weights.scales[rows], weights.zero_points[rows], fmt)


def columns_of(matmul: ov.Node, memory: WeightMemory) -> Projection:
    """Down weights, transposed and copied: a channel is an input of every output neuron.

    Raises:
        UnknownPatternError: weights of another form.
    """
    weights = read_weights(matmul, "down")
    dtype = weights.data.get_element_type()
    if weights.scales is None or weights.zero_points is None:
        values = np.ascontiguousarray(weights.data.data.reshape(weights.out, weights.inputs).T)
        if dtype == ov.Type.f16:
            return _constants(memory.constant(values.view(np.uint8)), None, None, "f16")
        return _constants(ops.constant(values), None, None, "f32")
    fmt = "u8" if dtype in (ov.Type.u8, ov.Type.i8) else "u4"
    pack = pack_columns_u8 if fmt == "u8" else pack_columns_u4
    packed = pack(np.ascontiguousarray(weights.values().T))
    return _constants(memory.constant(packed), weights.scales.T, weights.zero_points.T, fmt)
