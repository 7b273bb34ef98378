"""Inputs of passes of many shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from ovspec.cache.cache import CachedSequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.pass_inputs import PassInputs


def test_shapes_share_the_memory_of_the_largest() -> None:
    rows = ops.parameter(ov.PartialShape([-1, 4]), ov.Type.f32, name="rows")
    rows.output(0).set_names({"rows"})
    model = ov.Model([ops.result(ops.multiply(rows, np.float32(2)))], [rows])
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    inputs, places = PassInputs(request, ["rows"], native=False), list[int]()
    for count in (3, 90, 1, 0, 90, 40, 1):
        value = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
        inputs.write({"rows": value, "unknown": value})
        inputs.infer()
        np.testing.assert_array_equal(request.get_output_tensor().data, 2 * value)
        if count:
            places.append(request.get_tensor("rows").data.ctypes.data)
    assert len(set(places[1:])) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pass_that_fails_says_so(threads: int, demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread too, where OpenVINO drops the exception of an operation."""
    runner, write = ModelRunner(demo_ir, properties={"INFERENCE_NUM_THREADS": threads}), PassInputs.write
    monkeypatch.setattr(
        PassInputs,
        "write",
        lambda inputs, values: write(inputs, {**values, "slot_mapping": values["slot_mapping"] + 10**7}),
    )
    with pytest.raises(RuntimeError, match=r"slot_mapping\[0\] is 1000"):
        runner.forward([Rows(CachedSequence(), np.arange(5), sampled=5)])
    monkeypatch.undo()
    assert np.isfinite(runner.forward([Rows(CachedSequence(), np.arange(5), sampled=5)]).logits).all()
