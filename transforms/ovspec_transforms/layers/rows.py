"""Which outputs of a graph hold the same rows: reshapes that leave numbers in their order are no steps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import openvino as ov

_OURS = ("Linear", "VerifyAttention", "CacheWrite", "GatedMLP", "SparseMoE")
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
        width = width_of(output)
        return None if width is None else cls(output.get_node().get_name(), output.get_index(), width)


def unshaped(output: ov.Output) -> ov.Output:
    """The output behind reshapes that leave rows and the order of their numbers as they are."""
    while (source := _same_numbers(output)) is not None:
        output = source
    return output


def pass_rows(model: ov.Model) -> set[tuple[str, int]]:
    """Outputs, by node and index, that have the rows of the pass: not, say, one for each head."""
    numbers: dict[tuple[str, int], Fraction] = {}  # of an output, to each row of the pass
    found = set[tuple[str, int]]()
    for node in model.get_ordered_ops():
        sources = [port.get_source_output() for port in node.inputs()]
        known = [(numbers.get(_key(source)), width_of(source)) for source in sources]
        rows = max((count / size for count, size in known if count is not None and size), default=None)
        # Operations of ours, and what reads no rows f32, have those of the pass.
        if rows is None and (node.get_type_name() in _OURS or not any(size for _, size in known)):
            rows = Fraction(1)
        for output in node.outputs():
            width = width_of(output)
            if node.get_type_name() in _RESHAPES and known[0][0] is not None:
                numbers[_key(output)] = known[0][0]
            elif width and rows is not None:
                numbers[_key(output)] = rows * width
            if width is not None and numbers.get(_key(output), Fraction(0)) == width:
                found.add(_key(output))
    return found


def chosen_rows(model: ov.Model) -> dict[str, str]:
    """Of every node the Gather that chose its rows, such as the sampled ones; empty for all of the pass."""
    found = dict[str, str]()
    for node in model.get_ordered_ops():
        sources = [port.get_source_output() for port in node.inputs()]
        before = [found[source.get_node().get_name()] for source in sources if width_of(source)]
        if node.get_type_name() == "Gather" and width_of(sources[0]) and _is_of_rows(node):
            found[node.get_name()] = node.get_name()
        else:
            found[node.get_name()] = max(before, default="")
    return found


def _is_of_rows(gather: ov.Node) -> bool:
    """Whether a Gather chooses rows, not numbers within them as some rotary embeddings do."""
    axis = gather.input(2).get_source_output().get_node()
    return axis.get_type_name() != "Constant" or bool((axis.get_data() == 0).all())


def angles(model: ov.Model) -> set[str]:
    """Nodes that are computed from positions and from nothing of a text's tokens."""
    found = set[str]()
    for node in model.get_ordered_ops():
        sources = [port.get_source_output() for port in node.inputs()]
        floats = [source.get_node().get_name() for source in sources if _is_computed(source)]
        is_converted = node.get_type_name() == "Convert" and not sources[0].get_element_type().is_real()
        chosen = node.get_type_name() == "Select" and not floats
        if is_converted or chosen or (floats and found.issuperset(floats)):
            found.add(node.get_name())
    return found


def _is_computed(output: ov.Output) -> bool:
    """Whether an output has f32 numbers of the pass, in any shape: pictures give angles more dimensions."""
    return bool(output.get_element_type() == ov.Type.f32 and output.get_partial_shape().is_dynamic)


def _key(output: ov.Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _same_numbers(output: ov.Output) -> ov.Output | None:
    """The output before a node that leaves its numbers and rows as they are."""
    node = output.get_node()
    kind = node.get_type_name()
    if kind not in (*_RESHAPES, "Slice") or (width := width_of(output)) is None:
        return None
    if kind == "Transpose" or kind == "Slice":
        kept = _keeps_order(node) if kind == "Transpose" else _keeps_all(node)
        return node.input(0).get_source_output() if kept else None
    while node.get_type_name() in _RESHAPES and node.get_type_name() != "Transpose":
        output = node.input(0).get_source_output()
        if width_of(output) == width:
            return output
        node = output.get_node()
    return None


def width_of(output: ov.Output) -> int | None:
    """Numbers of a row, all but the first dimension together; `None` where they are not known."""
    if output.get_element_type() != ov.Type.f32:
        return None
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) < 2 or shape[0].is_static:
        return None
    width = 1
    for axis in range(1, len(shape)):  # iterating over the shape takes ten times as long
        if (size := shape[axis]).is_dynamic:
            return None
        width *= size.get_length()
    return width


def _keeps_order(node: ov.Node) -> bool:
    """Whether a Transpose moves nothing but dimensions of one."""
    before, after = width_of(node.input(0).get_source_output()), width_of(node.output(0))
    order = node.input(1).get_source_output().get_node()
    if before is None or before != after or order.get_type_name() != "Constant":
        return False
    shape = node.input(0).get_partial_shape()
    axes = [int(axis) for axis in order.get_data().ravel()]
    moved = [axis for axis in axes if axis == 0 or shape[axis].get_length() != 1]
    return axes[0] == 0 and moved == sorted(moved)


def _keeps_all(node: ov.Node) -> bool:
    """Whether a Slice takes everything."""
    steps = node.input(3).get_source_output().get_node()
    axes = node.input(4).get_source_output().get_node() if node.get_input_size() == 5 else steps
    known = all(part.get_type_name() == "Constant" for part in (steps, axes))
    if (
        not known
        or (steps.get_data() != 1).any()
        or node.get_input_size() != 5
        or (axes.get_data() == 0).any()
    ):
        return False
    return width_of(node.input(0).get_source_output()) == width_of(node.output(0))
