"""Input tensors of a request, in memory that is kept from pass to pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import openvino as ov
from numpy.typing import NDArray

import ovspec_ops
from ovspec.devices.clock import microseconds
from ovspec.graphs.compile import cache_tensors, state_tensors
from ovspec_transforms import CACHE_TABLE


class PassInputs:
    """Writes the inputs of a pass into tensors that the request already has.

    Creating and setting ten tensors costs more than filling them, and shapes rarely change between decoding
    steps. Of other shapes a tensor takes the beginning of the same memory, which has the size of the largest.

    Attributes:
        request: whose tensors they are.
        names: the inputs that are written; other values are ignored.

    Args:
        native: whether operations of ovspec are among the model's.
    """

    def __init__(self, request: ov.InferRequest, names: Iterable[str], native: bool) -> None:
        self.request = request
        self.names = tuple(names)
        self._faults = ovspec_ops.fault_counter() if native else lambda: 0
        self._memory: dict[str, NDArray[np.generic]] = {}
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
        """Run the pass; microseconds inside the model.

        Raises:
            RuntimeError: an operation failed; also where OpenVINO, with one thread, does not say so.
        """
        started, faults = microseconds(), self._faults()
        self.request.infer(share_outputs=True)  # else OpenVINO copies all of them
        if self._faults() != faults:
            raise RuntimeError(ovspec_ops.last_fault())
        return microseconds() - started

    def _select(self, name: str, value: NDArray[np.generic]) -> NDArray[np.generic]:
        memory = self._memory.get(name)
        if memory is None or memory.size < value.size:
            dtype = self.request.get_tensor(name).data.dtype  # a graph that drafts takes ids of 32 bits
            memory = self._memory[name] = np.empty(value.size, dtype)
        array = memory[: value.size].reshape(value.shape)
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
