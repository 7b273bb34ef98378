"""Which outputs of a graph hold the same rows: reshapes that leave numbers in their order are no steps."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

_RESHAPES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows f32 of a pass, by the output that computes them."""

    node: str
    index: int
    width: int

    @classmethod
    def of(cls, output: ov.Output) -> Rows | None:
        """The rows in an output; `None` where it holds no rows of a known width."""
        output = unshaped(output)
        width = _width(output)
        return None if width is None else cls(output.get_node().get_name(), output.get_index(), width)


def unshaped(output: ov.Output) -> ov.Output:
    """The output behind reshapes that leave rows and the order of their numbers as they are."""
    while (node := output.get_node()).get_type_name() in _RESHAPES and _keeps_order(node):
        output = node.input(0).get_source_output()
    return output


def _width(output: ov.Output) -> int | None:
    """Numbers of a row, all but the first dimension together."""
    shape = output.get_partial_shape()
    if output.get_element_type() != ov.Type.f32 or shape.rank.is_dynamic or len(shape) < 2:
        return None
    if shape[0].is_static or any(size.is_dynamic for size in list(shape)[1:]):
        return None
    width = 1
    for size in list(shape)[1:]:
        width *= size.get_length()
    return width


def _keeps_order(node: ov.Node) -> bool:
    before, after = _width(node.input(0).get_source_output()), _width(node.output(0))
    if before is None or before != after:
        return False
    if node.get_type_name() != "Transpose":
        return True
    order = node.input(1).get_source_output().get_node()
    if order.get_type_name() != "Constant":
        return False
    shape = node.input(0).get_partial_shape()
    axes = [int(axis) for axis in order.get_data().ravel()]
    moved = [axis for axis in axes if axis == 0 or shape[axis].get_length() != 1]
    return axes[0] == 0 and moved == sorted(moved)
