"""The first linear layer of a head, which joins the target's states of several boundaries."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.devices import openvino_core
from ovspec.operations.backends import Backends
from ovspec_transforms import HeadParts

# The plugin keeps 0.1 MB and more for each number of rows that it has met. So prompts' are rounded up.
_FEW, _STEP = 16, 64


class JoinedStates:
    """Makes features of states.

    Args:
        parts: of the head, with such a layer.
        backends: the operations that compute the head.
    """

    def __init__(self, parts: HeadParts, backends: Backends) -> None:
        assert parts.fc is not None
        properties = dict(backends.properties)
        compiled = openvino_core().compile_model(parts.fc, backends.device, properties)
        self._request = compiled.create_infer_request()

    def __call__(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features f32 `[rows, size]` of states f32 `[rows, sum of hidden sizes]`, a copy."""
        count = len(states)
        if count > _FEW:
            states = np.pad(states, ((0, -count % _STEP), (0, 0)))
        self._request.set_input_tensor(ov.Tensor(states[np.newaxis]))
        self._request.infer(share_outputs=True)
        features: NDArray[np.float32] = self._request.get_output_tensor().data[0, :count].copy()
        return features
