"""The weights of a gated MLP in the layouts that GatedMLP takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_ops.gated_mlp import f16_bytes, pack_columns_u4, pack_columns_u8, pack_rows_u4
from ovspec_transforms.expert_weights import (
    UnknownPatternError,
    shared_bytes,
    source_node,
    split_weights,
    zero_points_of,
)
from ovspec_transforms.ffn_layers import Product

_SIGNED = {ov.Type.i8: 0x80, ov.Type.i4: 0x88}


@dataclass(frozen=True, slots=True)
class Projection:
    """Data, scales and zero points for GatedMLP, and their format's name."""

    constants: tuple[ov.Node, ov.Node, ov.Node]
    fmt: str


@dataclass(frozen=True, slots=True)
class _Weights:
    """A linear layer's weights `[out, inputs]` as the model holds them."""

    data: ov.Node
    out: int
    inputs: int
    scales: NDArray[np.float16] | None = None
    zero_points: NDArray[np.uint8] | None = None

    @property
    def groups(self) -> int:
        return self.scales.shape[1] if self.scales is not None else 1

    def values(self) -> NDArray[np.uint8]:
        """Integers of 8 or 4 bits without a sign, one byte each, `[out, inputs]`."""
        stored: NDArray[np.uint8] = self.data.data.view(np.uint8) ^ np.uint8(
            _SIGNED.get(self.data.get_element_type(), 0)
        )
        if self.data.get_element_type() in (ov.Type.u4, ov.Type.i4):
            stored = np.stack([stored & 15, stored >> 4], -1)
        return stored.reshape(self.out, self.inputs)


def _read(matmul: ov.Node, what: str) -> _Weights:
    dims = matmul.input(1).get_partial_shape()
    if not matmul.get_attributes()["transpose_b"] or not dims.is_static or len(dims) != 2:
        raise UnknownPatternError(f"weights of {what} are {dims}, expected transposed [out, in]")
    out, inputs = (int(dim.get_length()) for dim in dims)
    data, zero_point, scale = split_weights(source_node(matmul, 1), what)
    dtype = data.get_element_type()
    if scale is None:
        if dtype not in (ov.Type.f32, ov.Type.f16):
            raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()} without scales")
        return _Weights(data, out, inputs)
    if dtype not in (ov.Type.u8, ov.Type.i8, ov.Type.u4, ov.Type.i4):
        raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()}")
    if scale.get_element_type() != ov.Type.f16:
        name = scale.get_element_type().get_type_name()
        raise UnknownPatternError(f"scales of {what} are of type {name}, expected f16")
    groups = math.prod(scale.get_output_shape(0)) // out
    eight = dtype in (ov.Type.u8, ov.Type.i8)
    if groups < 1 or inputs % groups or (eight and groups != 1):
        raise UnknownPatternError(
            f"weights of {what} of type {dtype.get_type_name()} have {groups} scales a neuron"
        )
    if dtype in (ov.Type.u4, ov.Type.i4) and inputs % 2:
        raise UnknownPatternError(f"weights of {what} have rows of {inputs} values in 4 bits, an odd number")
    scales: NDArray[np.float16] = scale.data.reshape(out, groups)
    return _Weights(data, out, inputs, scales, zero_points_of(dtype, zero_point, (out, groups), what))


def _constants(
    data: ov.Node | NDArray[Any], scales: NDArray[Any] | None, zero_points: NDArray[Any] | None, fmt: str
) -> Projection:
    empty = ops.constant(np.zeros((0,), np.uint8))
    stored = data if isinstance(data, ov.Node) else ops.constant(data)
    if scales is None or zero_points is None:
        return Projection((stored, empty, empty), fmt)
    bytes_of = ops.constant(f16_bytes(scales))
    return Projection((stored, bytes_of, ops.constant(np.ascontiguousarray(zero_points))), fmt)


def rows_of(product: Product, what: str) -> Projection:
    """Gate or up weights: a neuron is a channel.

    Weights of 8 bits without a sign and of 16 and 32 bits stay where they are, mapped files included;
    others, and halves of a product, are copied.

    Raises:
        UnknownPatternError: weights of another form.
    """
    weights = _read(product.matmul, what)
    if product.half is not None:
        return _half_of(weights, product.half)
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
        return _constants(weights.values(), weights.scales, weights.zero_points, "u8")
    packed = pack_rows_u4(weights.values(), weights.groups)
    return _constants(packed, weights.scales, weights.zero_points, "u4")


def _half_of(weights: _Weights, half: int) -> Projection:
    rows = slice(half * weights.out // 2, (half + 1) * weights.out // 2)
    if weights.scales is None or weights.zero_points is None:
        values = np.ascontiguousarray(weights.data.data.reshape(weights.out, weights.inputs)[rows])
        if values.dtype == np.float16:
            return _constants(values.view(np.uint8), None, None, "f16")
        return _constants(values, None, None, "f32")
    four_bits = weights.data.get_element_type() in (ov.Type.u4, ov.Type.i4)
    values = np.ascontiguousarray(weights.values()[rows])
    packed = pack_rows_u4(values, weights.groups) if four_bits else values
    return _constants(packed, weights.scales[rows], weights.zero_points[rows], "u4" if four_bits else "u8")


def columns_of(matmul: ov.Node) -> Projection:
    """Down weights, transposed: a channel is an input of every neuron. They are copied.

    Raises:
        UnknownPatternError: weights of another form.
    """
    weights = _read(matmul, "down")
    dtype = weights.data.get_element_type()
    if weights.scales is None or weights.zero_points is None:
        values = np.ascontiguousarray(weights.data.data.reshape(weights.out, weights.inputs).T)
        if dtype == ov.Type.f16:
            return _constants(values.view(np.uint8), None, None, "f16")
        return _constants(values, None, None, "f32")
    fmt = "u8" if dtype in (ov.Type.u8, ov.Type.i8) else "u4"
    pack = pack_columns_u8 if fmt == "u8" else pack_columns_u4
    packed = pack(np.ascontiguousarray(weights.values().T))
    return _constants(packed, weights.scales.T, weights.zero_points.T, fmt)
