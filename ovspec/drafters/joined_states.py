"""The first linear layer of a head, which joins the target's states of several boundaries."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.backends import Backends
from ovspec.runtime.devices import openvino_core
from ovspec.runtime.fixed_compilers import is_small, one_thread
from ovspec_transforms import HeadParts

# What verification of a usual draft accepts at once, with the token before it.
_FEW_ROWS = 8


class JoinedStates:
    """Makes features of states.

    Behind every verification there are a few rows to join, another number each time, which the plugin takes
    longer to prepare than a small layer to compute. They take a graph of 8 rows and one thread then.

    Args:
        parts: of the head, with such a layer.
        backends: the operations that compute the head.
    """

    def __init__(self, parts: HeadParts, backends: Backends) -> None:
        assert parts.fc is not None
        core, properties = openvino_core(), dict(backends.properties)
        self._any = core.compile_model(parts.fc, backends.device, properties).create_infer_request()
        self._few: ov.InferRequest | None = None
        if backends.on_cpu and is_small(parts.fc):
            graph = parts.fc.clone()
            graph.reshape([1, _FEW_ROWS, parts.read])
            self._few = one_thread(core, backends.device, properties)(graph).create_infer_request()
            self._rows = np.zeros((1, _FEW_ROWS, parts.read), np.float32)
            self._few.set_input_tensor(ov.Tensor(self._rows, shared_memory=True))

    def __call__(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features f32 `[rows, size]` of states f32 `[rows, sum of hidden sizes]`, a copy."""
        rows = len(states)
        if self._few is not None and rows <= _FEW_ROWS:
            request = self._few
            self._rows[0, :rows] = states
        else:
            request = self._any
            request.set_input_tensor(ov.Tensor(states[np.newaxis]))
        request.infer(share_outputs=True)
        features: NDArray[np.float32] = request.get_output_tensor().data[0, :rows].copy()
        return features
