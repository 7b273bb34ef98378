"""Input tensors of a request, allocated once per shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.clock import microseconds
from ovspec.runtime.compile import cache_tensors, state_tensors
from ovspec_transforms import CACHE_TABLE

_KEPT_SHAPES = 64


class PassInputs:
    """Writes the inputs of a pass into tensors that the request already has.

    Creating and setting ten tensors costs more than filling them, and shapes rarely change between decoding
    steps.

    Attributes:
        request: whose tensors they are.
        names: the inputs that are written; other values are ignored.
    """

    def __init__(self, request: ov.InferRequest, names: Iterable[str]) -> None:
        self.request = request
        self.names = tuple(names)
        self._known: dict[str, dict[tuple[int, ...], NDArray[np.generic]]] = {name: {} for name in self.names}
        self._current: dict[str, NDArray[np.generic]] = {}

    def write(self, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Set the inputs of the request."""
        for name in self.names:
            value = values[name]
            current = self._current.get(name)
            if current is None or current.shape != value.shape:
                current = self._select(name, value)
            current[...] = value

    def infer(self) -> float:
        """Run the pass; microseconds inside the model."""
        started = microseconds()
        self.request.infer(share_outputs=True)  # else OpenVINO copies all of them
        return microseconds() - started

    def _select(self, name: str, value: NDArray[np.generic]) -> NDArray[np.generic]:
        known = self._known[name]
        array = known.get(value.shape)
        if array is None:
            if len(known) == _KEPT_SHAPES:
                known.clear()
            array = known[value.shape] = np.empty(value.shape, value.dtype)
        self.request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._current[name] = array
        return array


def input_names(compiled: ov.CompiledModel, provided: AbstractSet[str]) -> list[str]:
    """The inputs of a compiled model beside the caches.

    Raises:
        ValueError: an input that they do not have.
    """
    held = {tensor.name for tensor in (*cache_tensors(compiled), *state_tensors(compiled))} | {CACHE_TABLE}
    # A port may have further names, such as `cache_position` beside `position_ids`.
    ports = [port.get_names() for port in compiled.inputs if not port.get_names() & held]
    names = [min(names & provided, default=min(names)) for names in ports]
    if unknown := sorted(set(names) - provided):
        raise ValueError(f"the model has the input {unknown[0]!r}, which a text pipeline does not provide")
    return names
