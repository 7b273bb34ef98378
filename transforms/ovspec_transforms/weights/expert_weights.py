"""The weights of experts in the three tensors that SparseMoE takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_transforms.graph import source_node


class UnknownPatternError(ValueError):
    """A subgraph is not what a pass knows; the message says what was found."""


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
    experts, out, inputs = (int(dim.get_length()) for dim in dims)
    data, zero_point, scale = split_weights(source_node(matmul, 1), what)
    transposed = bool(matmul.get_attributes()["transpose_b"])
    if not transposed or columns != slice(None):
        return _copied(data, zero_point, scale, (experts, out, inputs), what, columns, transposed)
    dtype = data.get_element_type()
    empty = ops.constant(np.zeros((0,), np.uint8))
    if scale is None:
        if dtype == ov.Type.f32:
            return [data, empty, empty]
        if dtype == ov.Type.f16:
            return [shared_bytes(data, (experts, out, 2 * inputs)), empty, empty]
        raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()} without scales")
    groups = math.prod(scale.get_output_shape(0)) // (experts * out)
    scales = _scales(scale, (experts, out, 2 * groups), what)
    zero_points = zero_points_of(dtype, zero_point, (experts, out, groups), what)
    stored = _data(data, dtype, (experts, out, inputs), what)
    return [stored, ops.constant(scales), ops.constant(zero_points)]


def _copied(
    data: ov.Node,
    zero_point: ov.Node | None,
    scale: ov.Node | None,
    shape: tuple[int, int, int],
    what: str,
    columns: slice,
    transposed: bool,
) -> list[ov.Node]:
    """The three tensors of some outputs of weights `[experts, in, out]`, or of transposed ones."""

    def rows(values: NDArray[Any]) -> NDArray[Any]:
        return np.array((values if transposed else values.swapaxes(1, 2))[:, columns], order="C")

    def constant(values: NDArray[Any]) -> ov.Node:
        return ops.constant(values, shared_memory=True)

    dtype, experts = data.get_element_type(), shape[0]
    if scale is None:
        if dtype not in (ov.Type.f32, ov.Type.f16):
            raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()} without scales")
        numbers = rows(data.data)
        empty = ops.constant(np.zeros((0,), np.uint8))
        return [constant(numbers if dtype == ov.Type.f32 else numbers.view(np.uint8)), empty, empty]
    out = shape[1] if transposed else shape[2]
    groups = math.prod(scale.get_output_shape(0)) // (experts * out)
    of_groups = (experts, out, groups) if transposed else (experts, groups, out)
    stored_scales = _scales(scale, (*of_groups[:2], 2 * of_groups[2]), what)
    scales = rows(stored_scales.view(np.float16)).view(np.uint8)
    zero_points = rows(zero_points_of(dtype, zero_point, of_groups, what))
    if dtype in (ov.Type.u8, ov.Type.i8):
        stored = data.data.view(np.uint8).reshape(shape)
        kept = rows(stored if dtype == ov.Type.u8 else stored ^ 0x80)
    elif dtype in (ov.Type.u4, ov.Type.i4):
        pairs = data.data.view(np.uint8) ^ (0x88 if dtype == ov.Type.i4 else 0)
        halves = rows(np.stack([pairs & 15, pairs >> 4], -1).reshape(shape))
        kept = halves[..., 0::2] | halves[..., 1::2] << 4
    else:
        raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()}")
    return [constant(kept), constant(scales), constant(zero_points)]


def _scales(scale: ov.Node, shape: tuple[int, ...], what: str) -> NDArray[np.uint8]:
    if scale.get_element_type() != ov.Type.f16:
        found = scale.get_element_type().get_type_name()
        raise UnknownPatternError(f"scales of {what} are of type {found}, expected f16")
    return np.ascontiguousarray(scale.data).view(np.uint8).reshape(shape)


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


def _data(data: ov.Node, dtype: ov.Type, shape: tuple[int, int, int], what: str) -> ov.Node:
    experts, out, inputs = shape
    if dtype == ov.Type.u8:
        same = data.get_output_shape(0) == ov.Shape(list(shape))
        return data if same else shared_bytes(data, shape)
    if dtype == ov.Type.i8:
        return ops.constant((data.data.view(np.uint8) ^ 0x80).reshape(shape))
    if dtype not in (ov.Type.u4, ov.Type.i4):
        raise UnknownPatternError(f"weights of {what} are of type {dtype.get_type_name()}")
    if inputs % 2:
        raise UnknownPatternError(f"weights of {what} have rows of {inputs} values in 4 bits, an odd number")
    packed = (experts, out, inputs // 2)
    if dtype == ov.Type.u4:
        return shared_bytes(data, packed)
    return ops.constant((data.data.view(np.uint8) ^ 0x88).reshape(packed))
