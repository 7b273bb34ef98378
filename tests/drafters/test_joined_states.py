"""States of a few rows are joined to what those of many are."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from settings import F32

from ovspec.drafters import joined_states
from ovspec.drafters.joined_states import JoinedStates
from ovspec.runtime.backends import Backends
from ovspec_transforms import HeadParts

READ, SIZE = 24, 8
WEIGHT = np.random.default_rng(0).standard_normal((READ, SIZE)).astype(np.float32)


def joined(monkeypatch: pytest.MonkeyPatch, small: bool) -> tuple[JoinedStates, list[list[int]]]:
    """A layer over states of an open size, and the shapes of the graphs that are compiled for one thread."""
    states = ops.parameter(ov.PartialShape([-1, -1, -1]), ov.Type.f32)
    layer = ov.Model([ops.result(ops.matmul(states, ops.constant(WEIGHT), False, False))], [states])
    shapes: list[list[int]] = []

    def noted(core: ov.Core, device: str, settings: dict[str, object]) -> object:
        def compile_(model: ov.Model) -> ov.CompiledModel:
            shapes.append(list(model.input().shape))
            return core.compile_model(model, device, settings)

        return compile_

    monkeypatch.setattr(joined_states, "one_thread", noted)
    monkeypatch.setattr(joined_states, "is_small", lambda model: small)
    parts = HeadParts(layer, layer, None, READ, SIZE, SIZE, SIZE)
    return JoinedStates(parts, Backends(properties=F32)), shapes


def rows(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((count, READ)).astype(np.float32)


@pytest.mark.parametrize("small", [True, False])
def test_features_are_the_layers(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    join, shapes = joined(monkeypatch, small)
    assert shapes == [[1, 8, READ]] * small
    found = [(count, join(rows(count))) for count in (3, 8, 1, 9, 40, 2)]
    # Copies: a later call leaves them as they are.
    for count, features in found:
        assert features.shape == (count, SIZE)
        np.testing.assert_allclose(features, rows(count) @ WEIGHT, rtol=1e-5, atol=1e-5)
