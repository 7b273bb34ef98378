"""The weights of experts in the three tensors that SparseMoE takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_transforms.graph import source_node

EIGHT_BITS, FOUR_BITS = (ov.Type.u8, ov.Type.i8), (ov.Type.u4, ov.Type.i4)
#: What makes a byte of signed weights one without a sign, by exclusive or.
SIGNS = {ov.Type.i8: 0x80, ov.Type.i4: 0x88}


class UnknownPatternError(ValueError):
    """A subgraph is not what a transform knows; the message says what was found."""


class _Bytes:
    """A constant's memory as an array that OpenVINO accepts: it refuses arrays that are not writeable.

    Nothing writes through it: the memory may be a mapped file. NumPy keeps this object, and so the
    constant, as long as the array lives.
    """

    def __init__(self, constant: ov.Node, shape: tuple[int, ...]) -> None:
        self._constant = constant
        address = constant.data.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}


def shared_bytes(constant: ov.Node, shape: tuple[int, ...]) -> ov.Node:
    """A constant of bytes over the memory of another, mapped files included."""
    return ops.constant(np.asarray(_Bytes(constant, shape)), shared_memory=True)


def _constant_behind(node: ov.Node, what: str) -> ov.Node:
    while node.get_type_name() == "Convert":
        node = source_node(node)
    if node.get_type_name() != "Constant":
        raise UnknownPatternError(f"{what} come from {node.get_type_name()} {node.get_friendly_name()!r}")
    return node


def split_weights(node: ov.Node, what: str) -> tuple[ov.Node, ov.Node | None, ov.Node | None]:
    """Data, zero point and scale constants of a decompression chain, as NNCF writes it."""
    while node.get_type_name() in ("Convert", "Reshape"):
        node = source_node(node)
    scale = zero_point = None
    if node.get_type_name() == "Multiply":
        scale = _constant_behind(source_node(node, 1), f"scales of {what}")
        node = source_node(node)
        while node.get_type_name() == "Convert":
            node = source_node(node)
        if node.get_type_name() == "Subtract":
            zero_point = _constant_behind(source_node(node, 1), f"zero points of {what}")
            node = source_node(node)
    return _constant_behind(node, f"weights of {what}"), zero_point, scale


def expert_weights(matmul: ov.Node, what: str, columns: slice = slice(None)) -> list[ov.Node]:
    """Data, scales and zero points of one projection, for SparseMoE.

    Weights of 8 and 4 bits without a sign and of 16 and 32 bits stay where they are, mapped files
    included; those with a sign are copied, as they get a zero point instead, and so are those that are not
    transposed or that hold the neurons of another projection too, into the order that the operation reads.

    Args:
        matmul: product of rows `[experts, rows, in]` with weights `[experts, out, in]`, transposed, or
            `[experts, in, out]`.
        what: name of the projection, for messages.
        columns: outputs of the product that the projection takes.

    Raises:
        UnknownPatternError: weights of another form.
    """
    dims = matmul.input(1).get_partial_shape()
    if not dims.is_static or len(dims) != 3:
        raise UnknownPatternError(f"weights of {what} are {dims}, expected [experts, out, in]")
    held = tuple(int(dim.get_length()) for dim in dims)
    data, zero_point, scale = split_weights(source_node(matmul, 1), what)
    dtype, transposed = data.get_element_type(), bool(matmul.get_attributes()["transpose_b"])
    experts, out, inputs = held if transposed else (held[0], held[2], held[1])
    if dtype not in ((ov.Type.f32, ov.Type.f16) if scale is None else (*EIGHT_BITS, *FOUR_BITS)):
        without = " without scales" if scale is None else ""
        raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()}{without}")
    if dtype in FOUR_BITS and inputs % 2:
        raise UnknownPatternError(f"weights of {what} have rows of {inputs} values in 4 bits, an odd number")
    stays = transposed and columns == slice(None)

    def rows(values: NDArray[Any]) -> NDArray[Any]:
        """Those of the projection, in the order that the operation reads."""
        if stays:
            return values
        return np.array((values if transposed else values.swapaxes(1, 2))[:, columns], order="C")

    if scale is None:
        empty = ops.constant(np.zeros((0,), np.uint8))
        numbers = data
        if not stays:
            numbers = ops.constant(rows(data.data), shared_memory=True)
        if dtype == ov.Type.f16:
            numbers = shared_bytes(numbers, (experts, numbers.get_output_shape(0)[1], 2 * inputs))
        return [numbers, empty, empty]
    groups = math.prod(scale.get_output_shape(0)) // (experts * out)
    of_groups = (experts, out, groups) if transposed else (experts, groups, out)
    scales = rows(_scales(scale, of_groups, what)).view(np.uint8)
    zero_points = rows(zero_points_of(dtype, zero_point, of_groups, what))
    return [_integers(data, held, None if stays else rows), ops.constant(scales), ops.constant(zero_points)]


def _integers(
    data: ov.Node, held: tuple[int, ...], rows: Callable[[NDArray[Any]], NDArray[Any]] | None
) -> ov.Node:
    """Integers without a sign, of 4 bits pairs of them; `rows` takes some of `held`, `None`: all stay."""
    dtype, packed = data.get_element_type(), held
    if dtype in FOUR_BITS:
        packed = (*held[:2], held[2] // 2)
    sign = SIGNS.get(dtype)
    if rows is None and sign is None:
        return data if list(data.get_output_shape(0)) == list(packed) else shared_bytes(data, packed)
    values: NDArray[np.uint8] = data.data.view(np.uint8)
    values = values if sign is None else values ^ np.uint8(sign)
    if rows is None:
        values = values.reshape(packed)
    elif dtype in EIGHT_BITS:
        values = rows(values.reshape(held))
    else:
        halves = rows(np.stack([values & 15, values >> 4], -1).reshape(held))
        values = halves[..., 0::2] | halves[..., 1::2] << 4
    return ops.constant(values, shared_memory=True)


def _scales(scale: ov.Node, shape: tuple[int, ...], what: str) -> NDArray[np.float16]:
    if scale.get_element_type() != ov.Type.f16:
        found = scale.get_element_type().get_type_name()
        raise UnknownPatternError(f"scales of {what} are of type {found}, expected f16")
    scales: NDArray[np.float16] = np.ascontiguousarray(scale.data).reshape(shape)
    return scales


def zero_points_of(
    dtype: ov.Type, zero_point: ov.Node | None, shape: tuple[int, ...], what: str
) -> NDArray[np.uint8]:
    """Zero points u8 of weights without a sign, in `shape`; the middle for weights that had one."""
    signed = {ov.Type.i8: 128, ov.Type.i4: 8}
    if zero_point is None:
        return np.full(shape, signed.get(dtype, 0), np.uint8)
    if dtype in signed or zero_point.get_element_type() != dtype:
        found = zero_point.get_element_type().get_type_name()
        raise UnknownPatternError(
            f"zero points of {what} are of type {found} with weights of type {dtype.get_type_name()}"
        )
    values: NDArray[Any] = zero_point.data.reshape(-1)
    count = math.prod(shape)
    if dtype == ov.Type.u4:
        values = np.stack([values & 15, values >> 4], -1).reshape(-1)[: max(count, 1)]
    if values.size == 1:
        return np.full(shape, values[0], np.uint8)
    if values.size != count:
        raise UnknownPatternError(f"zero points of {what} are {values.size}, expected {count}")
    return np.ascontiguousarray(values).reshape(shape)
