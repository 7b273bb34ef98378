"""The weights of a linear layer, as NNCF and optimum-intel write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_transforms.graph import source_node
from ovspec_transforms.weights.expert_weights import (
    EIGHT_BITS,
    FOUR_BITS,
    SIGNS,
    UnknownPatternError,
    split_weights,
    zero_points_of,
)

_DECOMPRESSION = ("Convert", "Reshape", "Multiply", "Subtract", "Transpose", "Unsqueeze", "Squeeze")


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A linear layer's weights `[out, inputs]` as the model holds them; no scales: numbers of 16 or 32 bits.

    `scales` and `zero_points` are `[out, groups]`. `transposed`: the model holds numbers as `[inputs, out]`.
    """

    data: ov.Node
    out: int
    inputs: int
    scales: NDArray[np.float16] | None = None
    zero_points: NDArray[np.uint8] | None = None
    transposed: bool = False

    @property
    def groups(self) -> int:
        """Groups of inputs, each with a scale of its own."""
        return self.scales.shape[1] if self.scales is not None else 1

    def stored(self, first: int = 0, last: int | None = None) -> NDArray[np.uint8]:
        """Integers without a sign of the neurons from `first` to before `last`; not to be written to.

        Returns:
            u8 `[neurons, inputs]`, or of 4 bits pairs of them, `[neurons, inputs / 2]`, the first of two in
            the lower half of a byte.
        """
        stored: NDArray[np.uint8] = self.data.data.view(np.uint8).reshape(self.out, -1)[first:last]
        sign = SIGNS.get(self.data.get_element_type())
        return stored ^ np.uint8(sign) if sign else stored

    def numbers(self, first: int = 0, last: int | None = None) -> NDArray[Any]:
        """Floating-point weights of the neurons from `first` to before `last`; not to be written to.

        Returns:
            f32, f16, or u16, the bits of bf16, `[neurons, inputs]`.
        """
        shape = (self.inputs, self.out) if self.transposed else (self.out, self.inputs)
        data: NDArray[Any] = self.data.data.reshape(shape)
        if self.data.get_element_type() == ov.Type.bf16:
            data = data.view(np.uint16)
        return (data.T if self.transposed else data)[first:last]

    def values(self) -> NDArray[np.uint8]:
        """Integers of 8 or 4 bits without a sign, one byte each, `[out, inputs]`; not to be written to."""
        stored = self.stored()
        if self.data.get_element_type() in FOUR_BITS:
            stored = np.stack([stored & 15, stored >> 4], -1)
        return stored.reshape(self.out, self.inputs)


def is_constant(matmul: ov.Node) -> bool:
    """Whether the weights of a product are constants, compressed or not, whatever their form."""
    nodes = [source_node(matmul, 1)]
    while nodes:
        node = nodes.pop()
        if node.get_type_name() in _DECOMPRESSION:
            nodes += [source_node(node, position) for position in range(node.get_input_size())]
        elif node.get_type_name() != "Constant":
            return False
    return True


def number_weights(matmul: ov.Node) -> LinearWeights | None:
    """Weights of f32, f16 or bf16 of a product, transposed or not; `None` where it has others."""
    data = source_node(matmul, 1)
    while data.get_type_name() == "Convert":
        data = source_node(data)
    shape = [int(size) for size in data.get_output_shape(0)] if data.get_type_name() == "Constant" else []
    if len(shape) != 2 or data.get_element_type() not in (ov.Type.f32, ov.Type.f16, ov.Type.bf16):
        return None
    transposed = not matmul.get_attributes()["transpose_b"]
    inputs, out = shape if transposed else reversed(shape)
    return LinearWeights(data, out, inputs, transposed=transposed)


def read_weights(matmul: ov.Node, what: str) -> LinearWeights:
    """The weights of a product, in a form that our operations take; `what` names it in messages.

    Raises:
        UnknownPatternError: weights of another form.
    """
    weights = stored_weights(matmul, what)
    if weights.groups != 1 and weights.data.get_element_type() in EIGHT_BITS:
        name = weights.data.get_element_type().get_type_name()
        raise UnknownPatternError(f"weights of {what} of type {name} have {weights.groups} scales a neuron")
    return weights


def stored_weights(matmul: ov.Node, what: str) -> LinearWeights:
    """The weights of a product as optimum-intel and NNCF write them; `what` names it in messages.

    Raises:
        UnknownPatternError: weights of another form.
    """
    dims = matmul.input(1).get_partial_shape()
    if not matmul.get_attributes()["transpose_b"] or not dims.is_static or len(dims) != 2:
        raise UnknownPatternError(f"weights of {what} are {dims}, expected transposed [out, in]")
    out, inputs = (int(dim.get_length()) for dim in dims)
    data, zero_point, scale = split_weights(source_node(matmul, 1), what)
    dtype = data.get_element_type()
    if scale is None:
        if dtype not in (ov.Type.f32, ov.Type.f16):
            raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()} without scales")
        return LinearWeights(data, out, inputs)
    if dtype not in (*EIGHT_BITS, *FOUR_BITS):
        raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()}")
    if scale.get_element_type() != ov.Type.f16:
        name = scale.get_element_type().get_type_name()
        raise UnknownPatternError(f"scales of {what} are of type {name}, expected f16")
    groups = math.prod(scale.get_output_shape(0)) // out
    if groups < 1 or inputs % groups:
        raise UnknownPatternError(f"weights of {what} have {groups} scales for {inputs} inputs")
    if dtype in FOUR_BITS and inputs % 2:
        raise UnknownPatternError(f"weights of {what} have rows of {inputs} values in 4 bits, an odd number")
    scales: NDArray[np.float16] = scale.data.reshape(out, groups)
    return LinearWeights(data, out, inputs, scales, zero_points_of(dtype, zero_point, (out, groups), what))
