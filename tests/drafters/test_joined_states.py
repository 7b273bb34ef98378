"""The layer that joins states, for any number of rows."""

from __future__ import annotations

import numpy as np
import openvino as ov
from hunts.fuzz_hunt import memory_mb
from numpy.typing import NDArray
from openvino import opset15 as ops
from settings import F32

from ovspec.drafters.head_fit import read_head
from ovspec.drafters.joined_states import JoinedStates
from ovspec.operations.backends import Backends
from ovspec_models.folder.head_info import HeadInfo
from ovspec_models.sources.demo_model import demo_head_path
from ovspec_transforms import HeadParts, split_head

READ, SIZE = 24, 8
WEIGHT = np.random.default_rng(0).standard_normal((READ, SIZE)).astype(np.float32)


def rows(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((count, READ)).astype(np.float32)


def test_features_are_the_layers() -> None:
    states = ops.parameter(ov.PartialShape([-1, -1, -1]), ov.Type.f32)
    layer = ov.Model([ops.result(ops.matmul(states, ops.constant(WEIGHT), False, False))], [states])
    join = JoinedStates(HeadParts(layer, layer, None, None, READ, SIZE, SIZE, SIZE), Backends(properties=F32))
    found = [(count, join(rows(count))) for count in (3, 8, 1, 16, 17, 40, 64, 65, 2)]
    # Copies: a later call leaves them as they are.
    for count, features in found:
        assert features.shape == (count, SIZE)
        np.testing.assert_allclose(features, rows(count) @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_prompts_of_many_lengths_leave_no_memory() -> None:
    parts = split_head(read_head(HeadInfo.read(demo_head_path())))
    assert parts.fc is not None
    join, read = JoinedStates(parts, Backends(properties=F32)), parts.fc.inputs[0].get_partial_shape()[2]

    def after(counts: range) -> float:
        for count in counts:
            join(np.zeros((count, read.get_length()), np.float32))
        return memory_mb()

    before = after(range(200, 220))
    assert after(range(1, 200)) - before < 8.0
