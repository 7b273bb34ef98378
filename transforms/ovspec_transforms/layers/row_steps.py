"""Patterns of steps that compute each row by itself: sums, products, activations, slices, routers."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_transforms.graph import evaluate, source_node
from ovspec_transforms.layers.rows import Rows
from ovspec_transforms.layers.step import Port, Step, behind, number, rows_into, rows_of_outputs

_ACTIVATIONS = {"Swish": "silu", "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def of_two(node: ov.Node, name: str) -> Step | None:
    """Rows with rows, or with numbers that are the same for all rows."""
    outputs = rows_of_outputs(node)
    for position in (0, 1):
        a = rows_into(node, position)
        if a is None or not outputs or a.width != outputs[0].width:
            continue
        b = rows_into(node, 1 - position) or same_in_all_rows(node, 1 - position)
        if b is not None and (not isinstance(b, Rows) or b.width == a.width):
            # The order of two summands changes no bit.
            return Step(name, [a, b], outputs)
    return None


def same_in_all_rows(node: ov.Node, position: int) -> NDArray[np.float32] | None:
    """Constant numbers behind an input, for each value of a row that the node computes, f32 `[width]`."""
    shape = [size.get_length() for size in list(node.get_output_partial_shape(0))[1:]]
    value = evaluate(source_node(node, position))
    if value is None or len(value.shape) > len(shape) + 1 or not value.element_type.is_real():
        return None
    numbers = np.array(value.data, np.float32)
    if numbers.ndim == len(shape) + 1:
        if numbers.shape[0] != 1:
            return None
        numbers = numbers[0]
    return np.ascontiguousarray(np.broadcast_to(numbers, shape)).ravel()


def scale(node: ov.Node) -> Step | None:
    """x times the one value of another's row."""
    outputs = rows_of_outputs(node)
    for position in (0, 1):
        x, factor = rows_into(node, position), rows_into(node, 1 - position)
        if x and factor and outputs and factor.width == 1 and x.width == outputs[0].width:
            return Step("scale", [x, factor], outputs)
    return None


def activation(node: ov.Node) -> Step | None:
    """An activation of each value."""
    kind = node.get_type_name()
    if kind == "Gelu":
        is_tanh = str(node.get_attributes()["approximation_mode"]).lower() == "tanh"
        name = "gelu_tanh" if is_tanh else "gelu_erf"
    else:
        name = _ACTIVATIONS[kind]
    x, outputs = rows_into(node, 0), rows_of_outputs(node)
    if not (x and outputs) or node.get_input_size() != 1:
        return None
    return Step(name, [x], outputs)


def softmax(node: ov.Node) -> Step | None:
    """Softmax over a row."""
    x, outputs, shape = rows_into(node, 0), rows_of_outputs(node), node.get_output_partial_shape(0)
    if not (x and outputs) or node.get_attributes()["axis"] not in (-1, len(shape) - 1):
        return None
    return Step("softmax", [x], outputs) if x.width == shape[len(shape) - 1].get_length() else None


def normalize(node: ov.Node) -> Step | None:
    """x / sum of x."""
    x, total = rows_into(node, 0), behind(node, 1, "ReduceSum")
    outputs, shape = rows_of_outputs(node), node.get_output_partial_shape(0)
    if not (x and outputs) or total is None or rows_into(total, 0) != x:
        return None
    if number(total, 1) not in (-1.0, len(shape) - 1.0) or x.width != shape[len(shape) - 1].get_length():
        return None
    return Step("normalize", [x], outputs)


def top_k(node: ov.Node) -> Step | None:
    """The largest values of a row, and their places."""
    x, values, attributes = rows_into(node, 0), Rows.of(node.output(0)), node.get_attributes()
    shape = node.get_output_partial_shape(0)
    if not (x and values) or attributes["mode"] != "max" or attributes["sort"] != "value":
        return None
    if len(shape) != 2 or attributes["axis"] not in (-1, 1):
        return None
    return Step("top_k", [x], [values, Port(node.get_name(), 1)])


def part(node: ov.Node) -> Step | None:
    """Slice along an axis that is not that of the rows."""
    numbers = [number(node, position) for position in range(1, node.get_input_size())]
    x, outputs = rows_into(node, 0), rows_of_outputs(node)
    if len(numbers) != 4 or any(value is None for value in numbers) or not (x and outputs):
        return None
    if outputs[0] == x:  # all of it
        return None
    begin, _, step, axis = (int(value) for value in numbers if value is not None)
    shape = [size.get_length() for size in list(node.get_input_partial_shape(0))[1:]]
    axis = axis - 1 if axis > 0 else axis + len(shape)
    if step != 1 or not 0 <= axis < len(shape):
        return None
    begin = min(begin + shape[axis] if begin < 0 else begin, shape[axis])
    inner = math.prod(shape[axis + 1 :])
    return Step("slice", [x], outputs, {"size": shape[axis] * inner, "first": begin * inner})


def parts(node: ov.Node) -> Step | None:
    """Split along an axis that is not that of the rows."""
    x, outputs, axis = rows_into(node, 0), rows_of_outputs(node), number(node, 1)
    if not (x and outputs) or axis is None:
        return None
    shape = [size.get_length() for size in list(node.get_input_partial_shape(0))[1:]]
    axis = int(axis) - 1 if axis > 0 else int(axis) + len(shape)
    if not 0 <= axis < len(shape):
        return None
    return Step("slice", [x], outputs, {"size": math.prod(shape[axis:]), "first": 0})


def concat(node: ov.Node) -> Step | None:
    """Rows joined along an axis that is not that of the rows."""
    sources = [rows_into(node, position) for position in range(node.get_input_size())]
    found, outputs = [rows for rows in sources if rows is not None], rows_of_outputs(node)
    shape, axis = node.get_output_partial_shape(0), node.get_attributes()["axis"]
    if len(found) < len(sources) or not outputs:
        return None
    axis = axis + len(shape) if axis < 0 else axis
    if axis == 0:
        return None
    count = math.prod(size.get_length() for size in list(shape)[1:axis])
    return Step("concat", list(found), outputs, {"parts": count})


def head(node: ov.Node) -> Step | None:
    """One of many heads: [rows, 1, heads, size] with the heads in front, one of which a Gather takes."""
    back = behind_one(node, "Transpose")
    gather = behind_one(behind_one(back, "Reshape"), "Gather")
    front = behind_one(behind_one(gather, "Reshape"), "Transpose")
    if back is None or gather is None or front is None:
        return None
    x, outputs = rows_into(front, 0), rows_of_outputs(node)
    order, index = (evaluate(source_node(front, 1)), number(gather, 1))
    if order is None or order.data.tolist() != [2, 0, 1, 3] or index is None or number(gather, 2) != 0.0:
        return None
    shape = front.get_input_partial_shape(0)
    heads, size = shape[2].get_length(), shape[3].get_length()
    back_order = evaluate(source_node(back, 1))
    if not (x and outputs) or back_order is None or back_order.data.tolist() != [1, 2, 0, 3] or shape[1] != 1:
        return None
    if outputs[0].width != size:
        return None
    return Step("slice", [x], outputs, {"size": heads * size, "first": int(index) % heads * size})


def behind_one(node: ov.Node | None, type_name: str) -> ov.Node | None:
    """The node of a type right behind the first input."""
    found = source_node(node) if node is not None and node.get_input_size() else None
    return found if found is not None and found.get_type_name() == type_name else None
