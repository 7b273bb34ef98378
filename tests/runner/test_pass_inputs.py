"""Inputs of passes of many shapes."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec.runner.pass_inputs import PassInputs


def test_shapes_share_the_memory_of_the_largest() -> None:
    rows = ops.parameter(ov.PartialShape([-1, 4]), ov.Type.f32, name="rows")
    rows.output(0).set_names({"rows"})
    model = ov.Model([ops.result(ops.multiply(rows, np.float32(2)))], [rows])
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    inputs, places = PassInputs(request, ["rows"]), list[int]()
    for count in (3, 90, 1, 0, 90, 40, 1):
        value = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
        inputs.write({"rows": value, "unknown": value})
        inputs.infer()
        np.testing.assert_array_equal(request.get_output_tensor().data, 2 * value)
        if count:
            places.append(request.get_tensor("rows").data.ctypes.data)
    assert len(set(places[1:])) == 1
