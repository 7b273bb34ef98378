"""A step of DecoderLayers, and what its patterns ask of a graph's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_transforms.graph import evaluate, source_node
from ovspec_transforms.layers.rows import Rows, unshaped


@dataclass(frozen=True, slots=True)
class Port:
    """What a step reads or makes that is neither rows nor weights, by the output of the graph."""

    node: str
    index: int

    @classmethod
    def of(cls, node: ov.Node, position: int) -> Port:
        """What stands behind an input."""
        source = node.input(position).get_source_output()
        return cls(source.get_node().get_name(), source.get_index())

    @classmethod
    def if_any(cls, node: ov.Node, position: int) -> Port | None:
        """The same; `None` for a constant of no element."""
        source = source_node(node, position)
        is_empty = source.get_type_name() == "Constant" and 0 in source.get_output_shape(0)
        return None if is_empty else cls.of(node, position)


@dataclass(frozen=True, slots=True)
class Cache(Port):
    """A cache that the operation reads by its address, so that it is no input: each costs 2 us a pass.

    Attributes:
        entry: of the table of addresses: three times the layer's number, and one more for values, two for
            summaries of keys.
        element_type: "u8" (by token) or "f32".
    """

    entry: int
    element_type: str

    @property
    def is_summary(self) -> bool:
        """Whether it holds summaries of keys."""
        return self.entry % len(CACHE_SIDES) == CACHE_SIDES["key_summary"]

    @classmethod
    def of(cls, node: ov.Node, position: int) -> Port:
        """The cache behind an input; a `Port` where it is none, or of another type."""
        port = Port.of(node, position)
        output = node.input(position).get_source_output()
        names = [name.rpartition(".") for name in output.get_names()]
        found = [(CACHE_SIDES[kind], int(layer)) for kind, _, layer in names if kind in CACHE_SIDES]
        if not found or output.get_element_type() not in (ov.Type.u8, ov.Type.f32):
            return port
        ((side, layer),) = found
        return cls(
            port.node, port.index, len(CACHE_SIDES) * layer + side, output.get_element_type().get_type_name()
        )


CACHE_SIDES = {"key_cache": 0, "value_cache": 1, "key_summary": 2}
"""Entries of a layer in the table of addresses."""

Operand = Rows | NDArray[np.generic] | Port | None
"""`None`: a tensor of no element."""


def cache_type(operands: Sequence[Operand]) -> dict[str, object]:
    """The setting of a step that reads keys or values by their address."""
    caches = [read for read in operands if isinstance(read, Cache) and not read.is_summary]
    return {"cache_type": caches[0].element_type} if caches else {}


@dataclass(slots=True)
class Step:
    """A line of a program.

    Attributes:
        name: of the step.
        operands: in the order of its C++.
        outputs: rows that it writes, and tables: tensors of another type or shape.
        settings: its other words.
        node: whose outputs it computes.
        condition: a table and the place of a number in it; where this is 0 the step is left out.
    """

    name: str
    operands: list[Operand]
    outputs: Sequence[Rows | Port]
    settings: dict[str, object] = field(default_factory=dict)
    node: str = ""
    condition: tuple[Port, int] | None = None

    @property
    def reads(self) -> list[Rows | Port]:
        """Its operands without weights, and the table of its condition."""
        tables: list[Operand] = [self.condition[0]] if self.condition else []
        return [operand for operand in (*self.operands, *tables) if isinstance(operand, Rows | Port)]


def rows_of_outputs(node: ov.Node) -> list[Rows] | None:
    """The rows that a node computes; `None` where an output holds none."""
    found = [own_rows(output) for output in node.outputs()]
    return None if None in found else [rows for rows in found if rows is not None]


def own_rows(output: ov.Output) -> Rows | None:
    """The rows of an output, those of no value too."""
    rows = Rows.of(output)
    shape = output.get_partial_shape()
    if rows is None and output.get_element_type() == ov.Type.f32 and len(shape) and shape[-1] == 0:
        return Rows(output.get_node().get_name(), output.get_index(), 0)
    return rows


def rows_into(node: ov.Node, position: int) -> Rows | None:
    """The rows behind an input."""
    return Rows.of(node.input(position).get_source_output())


def behind(node: ov.Node, position: int, type_name: str) -> ov.Node | None:
    """The node of a type behind an input, reshapes left out."""
    found = unshaped(node.input(position).get_source_output()).get_node()
    return found if found.get_type_name() == type_name else None


def number(node: ov.Node, position: int) -> float | None:
    """The one number behind an input; `None` where it is none."""
    value = evaluate(source_node(node, position))
    return float(value.data.ravel()[0]) if value is not None and value.size == 1 else None


def either(node: ov.Node, type_name: str) -> tuple[ov.Node, int] | None:
    """The node of a type behind one of two inputs, and the position of the other."""
    for position in (0, 1):
        if (found := behind(node, position, type_name)) is not None:
            return found, 1 - position
    return None


def weights_of(node: ov.Node, position: int, size: int) -> NDArray[np.float32] | None:
    """Constant numbers behind an input, f32 `[size]`."""
    value = evaluate(source_node(node, position))
    if value is None or value.size != size:
        return None
    return np.array(value.data, np.float32).ravel()
