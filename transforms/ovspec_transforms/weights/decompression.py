"""The Convert that marks a weight of 16 bits as compressed."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino._offline_transformations import compress_model_transformation

from ovspec_transforms.graph import source_node


def decompression_convert(stored: ov.Node) -> ov.Node:
    """Convert f16 to f32, marked as decompression so that plugins keep the weight in 16 bits.

    Python cannot set that mark in a form that survives saving, so the node comes from the transform that
    sets it: a one-element model is compressed and its Convert taken over.
    """
    parameter = ops.parameter(ov.PartialShape([1, 1]), ov.Type.f32)
    product = ops.matmul(parameter, ops.constant(np.ones((1, 1), np.float32)), False, True)
    model = ov.Model([ops.result(product)], [parameter], "one_weight")
    compress_model_transformation(model)
    convert = source_node(product, 1)
    convert.input(0).replace_source_output(stored.output(0))
    convert.constructor_validate_and_infer_types()
    return convert
