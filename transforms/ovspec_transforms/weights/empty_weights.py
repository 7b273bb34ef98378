"""Linear layers without channels, which OpenVINO's CPU plugin does not compute."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import let_read, nodes_of_type, source_node
from ovspec_transforms.report import TransformReport


def fill_empty_weights(model: ov.Model) -> TransformReport:
    """Give weights that have no channels one channel of zeros: the sum over no channels is zero.

    AFMoE with `num_shared_experts=0` has shared experts of no channels. OpenVINO 2026.4 leaves the result of
    their down projection as the memory was.

    Raises:
        ValueError: a product over no channels that is not one with a weight.
    """
    changed = []
    products = nodes_of_type(model, "MatMul")
    for product in products:
        for side in range(2):
            weight = source_node(product, side)
            weight = source_node(weight) if weight.get_type_name() == "Convert" else weight
            shape = weight.output(0).partial_shape
            if weight.get_type_name() == "Constant" and 0 in shape.to_shape():
                sizes = [size or 1 for size in shape.to_shape()]
                zeros = ops.constant(np.zeros(sizes, np.float32), weight.get_output_element_type(0))
                let_read(weight.output(0), zeros.output(0))
                changed.append(weight.get_friendly_name())
    if changed:
        model.validate_nodes_and_infer_types()
    for product in products:
        if any(size.is_static and size.get_length() == 0 for size in product.input(0).get_partial_shape()):
            raise ValueError(
                f"{product.get_friendly_name()} multiplies over no channels, which OpenVINO can't compute; "
                "run this model with transformers"
            )
    return TransformReport("FillEmptyWeights", tuple(changed))
