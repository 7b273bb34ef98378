"""Linear layers with compressed weights as one native operation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

import ovspec_ops
from ovspec_ops.linear import MOST_INPUTS, MOST_OUTPUTS, PANEL, pack_stored, packed_shape
from ovspec_transforms.graph import nodes_of_type
from ovspec_transforms.report import PassReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.linear_weights import LinearWeights, is_compressed, read_weights
from ovspec_transforms.weights.weight_memory import WeightMemory

LINEAR = "Linear"
_MOST_PACKERS = 4
_BLOCK_BYTES = 1 << 20  # what is made on the way to them stays in the cache, and in memory that is there
_EIGHT_BITS = (ov.Type.u8, ov.Type.i8)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A MatMul with weights that Linear takes."""

    matmul: ov.Node
    weights: LinearWeights

    @property
    def fmt(self) -> str:
        return "u8" if self.weights.data.get_element_type() in _EIGHT_BITS else "u4"

    @property
    def shares(self) -> tuple[str, int, str, int]:
        """What layers have in common that become one operation: their rows, and how rows are read."""
        rows = self.matmul.input(0).get_source_output()
        return rows.get_node().get_name(), rows.get_index(), self.fmt, self.weights.groups


def _layer(matmul: ov.Node) -> _Layer | None:
    """The layer behind a MatMul; `None` where its weights are not compressed.

    Raises:
        UnknownPatternError: compressed weights of a form that is not known.
    """
    shape = matmul.input(1).get_partial_shape()
    if shape.rank.is_dynamic or len(shape) != 2 or matmul.get_attributes()["transpose_a"]:
        return None
    if not is_compressed(matmul):
        return None
    layer = _Layer(matmul, read_weights(matmul, "a linear layer"))
    weights = layer.weights
    if weights.inputs > MOST_INPUTS:
        raise UnknownPatternError(f"rows have {weights.inputs} values, more than {MOST_INPUTS}")
    if weights.groups > 1 and weights.inputs // weights.groups % 8:
        raise UnknownPatternError(
            f"groups are of {weights.inputs // weights.groups} weights, expected a multiple of 8"
        )
    return layer


def _pack(layers: Sequence[_Layer], memory: WeightMemory) -> NDArray[np.uint8]:
    """The panels of all layers, one behind the other."""
    shapes = [packed_shape(w.out, w.inputs, w.groups, layer.fmt) for layer in layers for w in [layer.weights]]
    packed, first = memory.zeros((sum(panels for panels, _ in shapes), shapes[0][1])), 0
    for layer, (panels, size) in zip(layers, shapes, strict=True):
        weights = layer.weights
        assert weights.scales is not None and weights.zero_points is not None
        step = max(1, _BLOCK_BYTES // size)
        for begin in range(0, panels, step):
            end = min(begin + step, panels)
            some = slice(begin * PANEL, end * PANEL)
            pack_stored(
                weights.stored(some.start, some.stop),
                weights.scales[some],
                weights.zero_points[some],
                layer.fmt,
                packed[first + begin : first + end],
            )
        first += panels
    return packed


def _operation(layers: Sequence[_Layer], packed: NDArray[np.uint8]) -> ov.Node:
    first = layers[0]
    attributes = {
        "format": first.fmt,
        "groups": first.weights.groups,
        "sizes": [layer.weights.out for layer in layers],
    }
    rows = first.matmul.input(0).get_source_output()
    data = ops.constant(packed, shared_memory=True).output(0)
    return ovspec_ops.create(LINEAR, [rows, data], attributes)


def native_linear(model: ov.Model) -> PassReport:
    """Replace products with compressed weights by Linear; those of the same rows become one operation.

    Weights of 8 bits with a scale a neuron, and of 4 bits in groups, as NNCF writes them. They are copied,
    into the order in which the operation reads them. A layer of another form stays as it is, and is reported
    as `left`.

    Args:
        model: changed in place.
    """
    groups: dict[tuple[str, int, str, int], list[_Layer]] = {}
    left = []
    for matmul in nodes_of_type(model, "MatMul"):
        try:
            layer = _layer(matmul)
        except UnknownPatternError as error:
            left.append(f"{matmul.get_friendly_name()}: {error}")
            continue
        if layer is not None:
            groups.setdefault(layer.shares, []).append(layer)
    wholes = [
        layers[first : first + MOST_OUTPUTS]
        for layers in groups.values()
        for first in range(0, len(layers), MOST_OUTPUTS)
    ]
    changed = []
    # NumPy copies outside the interpreter's lock.
    with ThreadPoolExecutor(min(_MOST_PACKERS, len(os.sched_getaffinity(0)))) as pool:
        packed = pool.map(partial(_pack, memory=WeightMemory()), wholes)
        operations = [_operation(*pair) for pair in zip(wholes, packed, strict=True)]
    for layers, operation in zip(wholes, operations, strict=True):
        names = [layer.matmul.get_friendly_name() for layer in layers]
        operation.set_friendly_name(names[0])
        for layer, output in zip(layers, operation.outputs(), strict=True):
            output.add_names(layer.matmul.output(0).get_names())
            for port in list(layer.matmul.output(0).get_target_inputs()):
                port.replace_source_output(output)
        changed += names
    model.validate_nodes_and_infer_types()
    return PassReport("NativeLinear", tuple(changed), tuple(left))
