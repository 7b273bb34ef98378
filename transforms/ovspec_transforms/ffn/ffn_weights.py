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
from ovspec_transforms.weights.expert_weights import FOUR_BITS, shared_bytes
from ovspec_transforms.weights.linear_weights import LinearWeights, read_weights
from ovspec_transforms.weights.weight_memory import WeightMemory


@dataclass(frozen=True, slots=True)
class Projection:
    """Data, scales and zero points for GatedMLP, and their format's name."""

    tensors: tuple[ov.Output, ov.Output, ov.Output]
    fmt: str


def _integers(data: ov.Node, scales: NDArray[Any], zero_points: NDArray[Any], fmt: str) -> Projection:
    bytes_of = ops.constant(f16_bytes(scales)).output(0)
    zero_bytes = ops.constant(np.ascontiguousarray(zero_points)).output(0)
    return Projection((data.output(0), bytes_of, zero_bytes), fmt)


def _unscaled(data: ov.Node, fmt: str) -> Projection:
    nothing = [ops.constant(np.zeros((0,), np.uint8)).output(0) for _ in range(2)]
    return Projection((data.output(0), nothing[0], nothing[1]), fmt)


def _copied_numbers(values: NDArray[Any], memory: WeightMemory) -> Projection:
    values = np.ascontiguousarray(values)
    if values.dtype == np.float16:
        return _unscaled(memory.constant(values.view(np.uint8)), "f16")
    return _unscaled(ops.constant(values), "f32")


def values_of(gate: ov.Node) -> Projection:
    """The results of the gate's product, which another operation computes."""
    return _unscaled(gate, "values")


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
    if weights.scales is None or weights.zero_points is None:
        if dtype == ov.Type.f32:
            return _unscaled(weights.data, "f32")
        return _unscaled(shared_bytes(weights.data, (shape[0], 2 * shape[1])), "f16")
    if dtype == ov.Type.u8:
        same = weights.data.get_output_shape(0) == ov.Shape(list(shape))
        stored = weights.data if same else shared_bytes(weights.data, shape)
        return _integers(stored, weights.scales, weights.zero_points, "u8")
    if dtype == ov.Type.i8:
        return _integers(memory.constant(weights.values()), weights.scales, weights.zero_points, "u8")
    packed = pack_rows_u4(weights.values(), weights.groups)
    return _integers(memory.constant(packed), weights.scales, weights.zero_points, "u4")


def _half_of(weights: LinearWeights, half: int, memory: WeightMemory) -> Projection:
    rows = slice(half * weights.out // 2, (half + 1) * weights.out // 2)
    if weights.scales is None or weights.zero_points is None:
        return _copied_numbers(weights.data.data.reshape(weights.out, weights.inputs)[rows], memory)
    four_bits = weights.data.get_element_type() in FOUR_BITS
    values = np.ascontiguousarray(weights.values()[rows])
    packed = pack_rows_u4(values, weights.groups) if four_bits else values
    fmt = "u4" if four_bits else "u8"
    return _integers(memory.constant(packed), weights.scales[rows], weights.zero_points[rows], fmt)


def columns_of(matmul: ov.Node, memory: WeightMemory) -> Projection:
    """Down weights, transposed and copied: a channel is an input of every output neuron.

    Raises:
        UnknownPatternError: weights of another form.
    """
    weights = read_weights(matmul, "down")
    if weights.scales is None or weights.zero_points is None:
        return _copied_numbers(weights.data.data.reshape(weights.out, weights.inputs).T, memory)
    four_bits = weights.data.get_element_type() in FOUR_BITS
    fmt, pack = ("u4", pack_columns_u4) if four_bits else ("u8", pack_columns_u8)
    packed = pack(np.ascontiguousarray(weights.values().T))
    return _integers(memory.constant(packed), weights.scales.T, weights.zero_points.T, fmt)
