"""Linear layers as one native operation, whose rows do not depend on each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

import ovspec_ops
from ovspec_ops.linear.layout import MOST_INPUTS, MOST_OUTPUTS, PANEL, pack_numbers, pack_stored, packed_shape
from ovspec_transforms.graph import (
    GATED_DELTA_NET,
    SELECTIVE_SSM,
    add_parameter,
    ancestors,
    let_read,
    nodes_of_type,
)
from ovspec_transforms.linear.adapted_layer import ADAPTERS, AdaptedLayer
from ovspec_transforms.report import TransformReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.linear_weights import (
    LinearWeights,
    is_constant,
    number_weights,
    stored_weights,
)
from ovspec_transforms.weights.weight_memory import WeightMemory

LINEAR = "Linear"
_MOST_PACKERS = 4
_BLOCK_BYTES = 1 << 20  # so that intermediate arrays stay in the processor's cache
_FORMATS = {"u8": "u8", "i8": "u8", "u4": "u4", "i4": "u4", "f32": "f32", "f16": "f16", "bf16": "bf16"}
_ROWS_AS_THEY_ARE = 32
_NAME = "NativeLinear"

Arithmetic = Literal["f32", "bf16"]


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A MatMul with weights that Linear takes.

    `fmt` is the operation's format: that of the stored weights, or bf16 where floating-point weights are to
    be multiplied in bf16.
    """

    matmul: ov.Node
    weights: LinearWeights
    fmt: str

    @property
    def shares(self) -> tuple[str, int, bool, str, int]:
        """Layers with equal values become one operation: they read the same rows in the same way."""
        rows = self.matmul.input(0).get_source_output()
        name, index = rows.get_node().get_name(), rows.get_index()
        return name, index, self.reads_columns, self.fmt, self.weights.groups

    @property
    def reads_columns(self) -> bool:
        """Whether it reads its rows from the last dimension but one."""
        return bool(self.matmul.get_attributes()["transpose_a"])


def _layer(matmul: ov.Node, arithmetic: Arithmetic) -> LinearLayer | None:
    """The layer behind a MatMul; `None` where it multiplies no constant weights.

    Raises:
        UnknownPatternError: weights or rows of a form that Linear does not take.
    """
    if not is_constant(matmul):
        return None
    if matmul.get_input_element_type(0) != ov.Type.f32:
        name = matmul.get_input_element_type(0).get_type_name()
        raise UnknownPatternError(f"its rows are of type {name}, expected f32")
    rank = matmul.input(0).get_partial_shape().rank
    if rank.is_dynamic or rank.get_length() < 2:
        raise UnknownPatternError(f"its rows have {rank} dimensions, expected two or more")
    if arithmetic == "bf16" and _reads_states(matmul):
        raise UnknownPatternError("its rows come from states that the plugin keeps in bf16")
    weights = number_weights(matmul) or stored_weights(matmul, "a linear layer")
    if weights.inputs > MOST_INPUTS:
        raise UnknownPatternError(f"rows have {weights.inputs} values, more than {MOST_INPUTS}")
    if weights.groups > 1 and weights.inputs // weights.groups % 8:
        raise UnknownPatternError(
            f"groups are of {weights.inputs // weights.groups} weights, expected a multiple of 8"
        )
    fmt = _FORMATS[weights.data.get_element_type().get_type_name()]
    rounded = weights.scales is None and arithmetic == "bf16"
    return LinearLayer(matmul, weights, arithmetic if rounded else fmt)


def _reads_states(matmul: ov.Node) -> bool:
    """Whether the rows come from linear attention, with no other product between.

    At an inference precision of bf16 the plugin keeps the states in bf16, and computes in bf16 what leads to
    a product of its own. Where there is none it computes in f32, and ends the pass early without an error,
    or the process.
    """
    rows = matmul.input(0).get_source_output().get_node()
    states = (GATED_DELTA_NET, SELECTIVE_SSM)
    return any(node.get_type_name() in states for node in ancestors(rows, ("MatMul", LINEAR)))


def find_layers(model: ov.Model, arithmetic: Arithmetic) -> tuple[list[LinearLayer], list[str]]:
    """The layers that Linear takes, and a sentence for each that it does not."""
    found, left = [], []
    for matmul in nodes_of_type(model, "MatMul"):
        try:
            layer = _layer(matmul, arithmetic)
        except UnknownPatternError as error:
            left.append(f"{matmul.get_friendly_name()}: {error}")
            continue
        if layer is not None:
            found.append(layer)
    return found, left


def linear_layers(model: ov.Model) -> TransformReport:
    """The report that `native_linear` would give; the model stays as it is."""
    found, left = find_layers(model, "f32")
    return TransformReport(_NAME, tuple(layer.matmul.get_friendly_name() for layer in found), tuple(left))


def _shapes(layers: Sequence[LinearLayer]) -> list[tuple[int, int]]:
    return [packed_shape(w.out, w.inputs, w.groups, layer.fmt) for layer in layers for w in [layer.weights]]


def _memory(wholes: Sequence[Sequence[LinearLayer]]) -> list[NDArray[np.uint8]]:
    """Zeros for the panels of each operation, in the order of the graph: what one operation reads as a whole
    then holds no weights of another."""
    memory, shapes = WeightMemory(), [_shapes(layers) for layers in wholes]
    return [memory.zeros((sum(panels for panels, _ in of), of[0][1])) for of in shapes]


def _pack(layers: Sequence[LinearLayer], packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Write the panels of all layers, one behind the other."""
    first = 0
    for layer, (panels, size) in zip(layers, _shapes(layers), strict=True):
        weights = layer.weights
        step = max(1, _BLOCK_BYTES // size)
        for begin in range(0, panels, step):
            end = min(begin + step, panels)
            some = slice(begin * PANEL, end * PANEL)
            to = packed[first + begin : first + end]
            if weights.scales is None or weights.zero_points is None:
                pack_numbers(weights.numbers(some.start, some.stop), layer.fmt, to)
                continue
            stored = weights.stored(some.start, some.stop)
            pack_stored(stored, weights.scales[some], weights.zero_points[some], layer.fmt, to)
        first += panels
    return packed


def _of_known_width(rows: ov.Output, width: int) -> ov.Output:
    """Rows whose width only the weights tell: behind attention in the IR of a GGUF file."""
    sizes = list(rows.get_partial_shape())
    if sizes[-1].is_static or any(size.is_dynamic for size in sizes[1:-1]):
        return rows
    shape = np.array([-1, *(size.get_length() for size in sizes[1:-1]), width], np.int64)
    return ops.reshape(rows, ops.constant(shape), False).output(0)


def _rows(layer: LinearLayer) -> ov.Output:
    """What a layer multiplies, values of a row in the last dimension."""
    given = layer.matmul.input(0).get_source_output()
    if layer.reads_columns:
        last = given.get_partial_shape().rank.get_length() - 1
        order = ops.constant(np.array([*range(last - 1), last, last - 1]))
        given = ops.transpose(given, order).output(0)
    return _of_known_width(given, layer.weights.inputs)


def _operation(
    layers: Sequence[LinearLayer],
    packed: NDArray[np.uint8],
    arithmetic: Arithmetic,
    adapters: Mapping[str, int],
    tables: ov.Node | None,
) -> ov.Node:
    first = layers[0]
    attributes: dict[str, object] = {
        "format": first.fmt,
        "groups": first.weights.groups,
        "sizes": [layer.weights.out for layer in layers],
    }
    if first.weights.scales is None:
        attributes["row_bits"] = 16 if arithmetic == "bf16" else _ROWS_AS_THEY_ARE
    inputs = [_rows(first), ops.constant(packed, shared_memory=True).output(0)]
    numbers = [adapters.get(layer.matmul.get_friendly_name(), -1) for layer in layers]
    if tables is not None and max(numbers) >= 0:
        inputs.append(tables.output(0))
        attributes["adapter_layers"] = numbers
    return ovspec_ops.create(LINEAR, inputs, attributes)


def native_linear(
    model: ov.Model, arithmetic: Arithmetic = "f32", adapted: Sequence[AdaptedLayer] = ()
) -> TransformReport:
    """Replace products with constant weights by Linear; those of the same rows become one operation.

    Weights of 8 and 4 bits with a scale a neuron or a group, as NNCF and GenAI's reader of GGUF files write
    them, and of f32, f16 and bf16. They are copied, into the order in which the operation reads them. A layer
    of another form stays as it is, and is reported as `left`: whether its rows depend on each other is up to
    the plugin.

    Args:
        model: changed in place.
        arithmetic: of products with floating-point weights. "f32" takes rows and weights as they are; "bf16"
            rounds both to bf16 and adds their products in f32, as OpenVINO does at that inference precision.
        adapted: layers that LoRA adapters may add to, of `adapted_layers`. With any, the model gets the input
            `adapters` u8 `[rows, 8]`: the address of each row's `AdapterTable`, 0: none.
    """
    found, left = find_layers(model, arithmetic)
    adapters = {layer.node: number for number, layer in enumerate(adapted)}
    tables = add_parameter(model, ADAPTERS, [-1, 8], ov.Type.u8) if adapted else None
    groups: dict[tuple[str, int, bool, str, int], list[LinearLayer]] = {}
    for layer in found:
        groups.setdefault(layer.shares, []).append(layer)
    wholes = [
        layers[first : first + MOST_OUTPUTS]
        for layers in groups.values()
        for first in range(0, len(layers), MOST_OUTPUTS)
    ]
    changed = []
    # NumPy copies outside the interpreter's lock.
    with ThreadPoolExecutor(min(_MOST_PACKERS, len(os.sched_getaffinity(0)))) as pool:
        packed = pool.map(_pack, wholes, _memory(wholes))
        operations = [
            _operation(*pair, arithmetic, adapters, tables) for pair in zip(wholes, packed, strict=True)
        ]
    for layers, operation in zip(wholes, operations, strict=True):
        names = [layer.matmul.get_friendly_name() for layer in layers]
        operation.set_friendly_name(names[0])
        for layer, output in zip(layers, operation.outputs(), strict=True):
            output.add_names(layer.matmul.output(0).get_names())
            let_read(layer.matmul.output(0), output)
        changed += names
    model.validate_nodes_and_infer_types()
    return TransformReport(_NAME, tuple(changed), tuple(left))
