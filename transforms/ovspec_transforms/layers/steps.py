"""The patterns of a decoder layer, each lowered to a step of DecoderLayers.

A pattern is found from its last node. What it does not know gives no step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_transforms.graph import evaluate, source_node
from ovspec_transforms.layers.rows import Rows, unshaped


@dataclass(frozen=True, slots=True)
class Port:
    """What a step reads that is neither rows nor weights, by the output that it comes from."""

    node: str
    index: int

    @classmethod
    def of(cls, node: ov.Node, position: int) -> Port:
        """What stands behind an input."""
        source = node.input(position).get_source_output()
        return cls(source.get_node().get_name(), source.get_index())


@dataclass(frozen=True, slots=True)
class Cache(Port):
    """A cache that the operation reads by its address, so that it is no input: each costs 2 us a pass.

    Attributes:
        entry: of the table of addresses, twice the layer's number, and one more for values.
        element_type: "u8" (by token) or "f32".
    """

    entry: int
    element_type: str

    @classmethod
    def of(cls, node: ov.Node, position: int) -> Port:
        """The cache behind an input; a `Port` where it is none, or of another type."""
        port = Port.of(node, position)
        output = node.input(position).get_source_output()
        names = [name.rpartition(".") for name in output.get_names()]
        found = [(_CACHES[kind], int(layer)) for kind, _, layer in names if kind in _CACHES]
        if not found or output.get_element_type() not in (ov.Type.u8, ov.Type.f32):
            return port
        ((side, layer),) = found
        return cls(port.node, port.index, 2 * layer + side, output.get_element_type().get_type_name())


_CACHES = {"key_cache": 0, "value_cache": 1}

Operand = Rows | NDArray[np.generic] | Port


@dataclass(slots=True)
class Step:
    """A line of a program.

    Attributes:
        name: of the step.
        operands: in the order of its C++.
        outputs: rows that it writes.
        settings: its other words.
        node: whose outputs it computes.
    """

    name: str
    operands: list[Operand]
    outputs: list[Rows]
    settings: dict[str, object] = field(default_factory=dict)
    node: str = ""

    @property
    def reads(self) -> list[Rows | Port]:
        """Its operands without weights."""
        return [operand for operand in self.operands if not isinstance(operand, np.ndarray)]


def step_of(node: ov.Node) -> Step | None:
    """The step whose last node this is; `None` where no pattern knows it."""
    for lower in _PATTERNS.get(node.get_type_name(), ()):
        if (step := lower(node)) is not None:
            step.node = node.get_name()
            return step
    return None


def _outputs(node: ov.Node) -> list[Rows] | None:
    found = [_own(output) for output in node.outputs()]
    return None if None in found else [rows for rows in found if rows is not None]


def _own(output: ov.Output) -> Rows | None:
    rows = Rows.of(output)
    if rows is None and output.get_element_type() == ov.Type.f32 and output.get_partial_shape()[-1] == 0:
        return Rows(output.get_node().get_name(), output.get_index(), 0)
    return rows


def _input(node: ov.Node, position: int) -> Rows | None:
    return Rows.of(node.input(position).get_source_output())


def _behind(node: ov.Node, position: int, type_name: str) -> ov.Node | None:
    """The node of a type behind an input, reshapes left out."""
    found = unshaped(node.input(position).get_source_output()).get_node()
    return found if found.get_type_name() == type_name else None


def _number(node: ov.Node, position: int) -> float | None:
    value = evaluate(source_node(node, position))
    return float(value.data.ravel()[0]) if value is not None and value.size == 1 else None


def _either(node: ov.Node, type_name: str) -> tuple[ov.Node, int] | None:
    """The node of a type behind one of two inputs, and the position of the other."""
    for position in (0, 1):
        if (found := _behind(node, position, type_name)) is not None:
            return found, 1 - position
    return None


def _weights(node: ov.Node, position: int, size: int) -> NDArray[np.float32] | None:
    value = evaluate(source_node(node, position))
    if value is None or value.size != size:
        return None
    return np.array(value.data, np.float32).ravel()


def _rms(node: ov.Node) -> Step | None:
    """Multiply(weights, Multiply(x, 1 / sqrt(mean(x^2) + eps)))."""
    found = _either(node, "Multiply")
    if found is None:
        return None
    scaled, position = found
    root = _either(scaled, "Divide")
    if root is None or _number(root[0], 0) != 1.0:
        return None
    x = Rows.of(scaled.input(root[1]).get_source_output())
    sqrt = _behind(root[0], 1, "Sqrt")
    add = _behind(sqrt, 0, "Add") if sqrt else None
    mean = _either(add, "ReduceMean") if add else None
    power = _behind(mean[0], 0, "Power") if mean else None
    if add is None or mean is None or power is None or x is None or _input(power, 0) != x:
        return None
    epsilon, axis = _number(add, mean[1]), _number(mean[0], 1)
    shape = power.get_output_partial_shape(0)
    if _number(power, 1) != 2.0 or epsilon is None or axis not in (-1.0, len(shape) - 1.0):
        return None
    size = shape[len(shape) - 1].get_length()
    weights, outputs = _weights(node, position, size), _outputs(node)
    if weights is None or outputs is None:
        return None
    return Step("rms", [x, weights], outputs, {"size": size, "eps": epsilon})


def _rope(node: ov.Node) -> Step | None:
    """Add(x * cos, Concat(-second half of x, first half) * sin)."""
    products = [_behind(node, position, "Multiply") for position in (0, 1)]
    for straight, turned in (products, products[::-1]):
        if straight is None or turned is None:
            return None
        halves = _either(turned, "Concat")
        if halves is None:
            continue
        concat, sin_position = halves
        size = node.get_output_partial_shape(0)[-1].get_length()
        x = _turned(concat, size)
        for position in (0, 1):
            if x is not None and _input(straight, position) == x:
                cos, sin = _input(straight, 1 - position), _input(turned, sin_position)
                outputs = _outputs(node)
                if cos and sin and outputs and cos.width == sin.width == size:
                    return Step("rope", [x, cos, sin], outputs)
    return None


def _turned(concat: ov.Node, size: int) -> Rows | None:
    """x of Concat(-x[half:], x[:half]) along the last axis."""
    if concat.get_input_size() != 2 or concat.get_attributes()["axis"] not in (-1, 3):
        return None
    negated, first = _behind(concat, 0, "Multiply"), _behind(concat, 1, "Slice")
    found = _either(negated, "Slice") if negated else None
    if negated is None or first is None or found is None or _number(negated, found[1]) != -1.0:
        return None
    half = size // 2
    second = found[0]
    if _sliced(second) != (half, size) or _sliced(first) != (0, half):
        return None
    x = _input(second, 0)
    return x if x is not None and x == _input(first, 0) else None


def _sliced(node: ov.Node) -> tuple[int, int] | None:
    """Begin and end of a slice of the last axis with step 1."""
    numbers = [_number(node, position) for position in (1, 2, 3, 4)]
    if any(number is None for number in numbers):
        return None
    begin, end, step, axis = (int(number) for number in numbers if number is not None)
    shape = node.get_input_partial_shape(0)
    if step != 1 or axis not in (-1, len(shape) - 1):
        return None
    size = shape[len(shape) - 1].get_length()
    return min(begin, size), min(end, size)


def _add(node: ov.Node) -> Step | None:
    return _of_two(node, "add")


def _gated(node: ov.Node) -> Step | None:
    """silu(a) * b."""
    found = _either(node, "Swish")
    if found is None:
        return None
    a, b, outputs = _input(found[0], 0), _input(node, found[1]), _outputs(node)
    if not (a and b and outputs) or found[0].get_input_size() != 1 or a.width != b.width:
        return None
    return Step("silu_multiply", [a, b], outputs)


def _of_two(node: ov.Node, name: str) -> Step | None:
    a, b, outputs = _input(node, 0), _input(node, 1), _outputs(node)
    if not (a and b and outputs) or not a.width == b.width == outputs[0].width:
        return None
    return Step(name, [a, b], outputs)


def _linear(node: ov.Node) -> Step | None:
    x, outputs = _input(node, 0), _outputs(node)
    packed = source_node(node, 1)
    if not (x and outputs) or packed.get_type_name() != "Constant":
        return None
    attributes = node.get_attributes()
    settings = {name: attributes[name] for name in ("format", "groups", "row_bits")}
    return Step("linear", [x, packed.get_data()], outputs, settings)


def _cache_write(node: ov.Node) -> Step | None:
    key, value, outputs = _input(node, 0), _input(node, 1), _outputs(node)
    if not (key and value and outputs):
        return None
    caches = [Cache.of(node, position) for position in (2, 3)]
    settings = {name: node.get_attributes()[name] for name in ("kv_heads", "k_size", "v_size")}
    operands: list[Operand] = [key, value, *caches, Port.of(node, 4)]
    return Step("cache_write", operands, outputs, settings | _cache_type(caches))


def _cache_type(caches: list[Port]) -> dict[str, object]:
    types = {cache.element_type for cache in caches if isinstance(cache, Cache)}
    return {"cache_type": types.pop()} if types else {}


def _attention(node: ov.Node) -> Step | None:
    query, written, outputs = _input(node, 0), _own(node.input(3).get_source_output()), _outputs(node)
    if not (query and written and outputs) or written.width:
        return None
    caches = [Cache.of(node, position) for position in (1, 2)]
    others = [Port.of(node, position) for position in range(4, node.get_input_size())]
    settings = {
        name: node.get_attributes()[name]
        for name in ("kv_heads", "k_size", "v_size", "scale", "sliding_window")
    }
    operands: list[Operand] = [query, *caches, written, *others]
    return Step("attention", operands, outputs, settings | _cache_type(caches))


_PATTERNS: dict[str, tuple[Callable[[ov.Node], Step | None], ...]] = {
    "Multiply": (_rms, _gated),
    "Add": (_rope, _add),
    "Linear": (_linear,),
    "CacheWrite": (_cache_write,),
    "VerifyAttention": (_attention,),
}
