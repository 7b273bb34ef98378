"""Parts of a MatMul's weights, compressed as the whole is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino._offline_transformations import compress_model_transformation

from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.linear_weights import FOUR_BITS, stored_weights

_SIGN = {ov.Type.i8: np.uint8(0x80), ov.Type.i4: np.uint8(0x8)}


@dataclass(frozen=True, slots=True)
class WeightParts:
    """The weights `[out, in]` of a MatMul, to take parts of, value by value the same.

    Attributes:
        dtype: that they are stored in.
        data: `[out, blocks, inputs of a block]`; u8 without a sign where they have 8 or 4 bits.
        scales: `[out, blocks]`, one for the inputs of a block; `None` for floating-point weights.
        zero_points: u8 `[out, blocks]`; `None` likewise.
    """

    dtype: ov.Type
    data: NDArray[Any]
    scales: NDArray[Any] | None = None
    zero_points: NDArray[np.uint8] | None = None

    @classmethod
    def of(cls, matmul: ov.Node, what: str) -> WeightParts:
        """Read the weights of a MatMul.

        Raises:
            UnknownPatternError: they have another form than optimum-intel and NNCF give them.
        """
        weights = stored_weights(matmul, what)
        dtype, shape = weights.data.get_element_type(), (weights.out, weights.groups, -1)
        if weights.scales is None:
            return cls(dtype, weights.data.data.reshape(shape))
        return cls(dtype, weights.values().reshape(shape), weights.scales, weights.zero_points)

    @property
    def blocks(self) -> int:
        """Into how many blocks the inputs fall that have a scale of their own."""
        return int(self.data.shape[1])

    def rows(self, chosen: NDArray[np.int32]) -> WeightParts:
        """The weights of some outputs."""
        scales, zero_points = (None if x is None else x[chosen] for x in (self.scales, self.zero_points))
        return replace(self, data=self.data[chosen], scales=scales, zero_points=zero_points)

    def columns(self, chosen: NDArray[np.int32]) -> WeightParts:
        """The weights of some inputs, as many of every block, in ascending order.

        Raises:
            UnknownPatternError: more of one block than of another, whose scales then have no place.
        """
        size = self.data.shape[2]
        counts = np.bincount(chosen // size, minlength=self.blocks)
        if counts.min() != counts.max():
            raise UnknownPatternError(
                f"{size} channels share a scale, and a part takes {counts.max()} of some and {counts.min()} "
                "of others: it must take as many of all"
            )
        return replace(
            self, data=self.data[:, chosen // size, chosen % size].reshape(len(self.data), self.blocks, -1)
        )

    def column_norms(self) -> NDArray[np.float32]:
        """Length of the vector of weights that each input has, f32 `[in]`."""
        squares = np.zeros(self.data.shape[1:])
        for row, stored in enumerate(self.data):
            values = stored.astype(np.float32)
            if self.scales is not None and self.zero_points is not None:
                values -= self.zero_points[row].astype(np.float32)[:, None]
                values *= self.scales[row].astype(np.float32)[:, None]
            squares += values**2
        return np.sqrt(squares).astype(np.float32).reshape(-1)

    def node(self) -> ov.Node:
        """f32 `[out, in]`, with the decompression that plugins know."""
        shape = (len(self.data), self.blocks * self.data.shape[2])
        if self.scales is None or self.zero_points is None:
            stored = ops.constant(np.ascontiguousarray(self.data.reshape(shape)))
            return stored if self.dtype == ov.Type.f32 else decompression_convert(stored)
        grouped = shape if self.blocks == 1 else self.data.shape
        each = (*grouped[:-1], 1)
        signed = self.dtype in _SIGN
        values = self.data ^ _SIGN[self.dtype] if signed else self.data
        value = ops.convert(_constant(values, self.dtype, grouped), "f16")
        if not signed:
            shift = ops.convert(_constant(self.zero_points, self.dtype, each), "f16")
            value = ops.subtract(value, shift)
        value = ops.multiply(value, ops.constant(np.ascontiguousarray(self.scales.reshape(each))))
        if self.blocks > 1:
            value = ops.reshape(value, np.array(shape, np.int64), special_zero=False)
        return ops.convert(value, "f32")


def _constant(values: NDArray[Any], dtype: ov.Type, shape: tuple[int, ...]) -> ov.Node:
    """A constant of 8 or 4 bits a value."""
    flat = values.reshape(-1)
    if dtype in FOUR_BITS:
        even = np.concatenate([flat, np.zeros(len(flat) % 2, np.uint8)]).reshape(-1, 2)
        flat = even[:, 0] | even[:, 1] << 4
    tensor = ov.Tensor(dtype, ov.Shape(list(shape)))
    tensor.data.view(np.uint8).reshape(-1)[:] = flat
    return ov.op.Constant(tensor, shared_memory=True)


def decompression_convert(stored: ov.Node) -> ov.Node:
    """Convert f16 to f32, marked as decompression so that plugins keep the weight in 16 bits.

    Python cannot set that mark in a form that survives saving, so the node comes from the pass that
    sets it: a one-element model is compressed and its Convert taken over.
    """
    parameter = ops.parameter(ov.PartialShape([1, 1]), ov.Type.f32)
    product = ops.matmul(parameter, ops.constant(np.ones((1, 1), np.float32)), False, True)
    model = ov.Model([ops.result(product)], [parameter], "one_weight")
    compress_model_transformation(model)
    convert = product.input(1).get_source_output().get_node()
    convert.input(0).replace_source_output(stored.output(0))
    convert.constructor_validate_and_infer_types()
    return convert
