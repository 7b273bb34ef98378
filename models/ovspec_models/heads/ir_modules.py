"""The weights of an IR by the modules of torch that they come from."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_transforms.graph import evaluate


def module_weights(model: ov.Model) -> tuple[dict[str, ov.Node], dict[str, NDArray[np.float32]]]:
    """The products and the norms' factors `[size]` of an IR by the modules of torch that they come from."""
    layers: dict[str, ov.Node] = {}
    norms: dict[str, NDArray[np.float32]] = {}
    for node in model.get_ordered_ops():
        # Nodes are called after their module, e.g. __module.layers.0.mlp.up_proj/...
        scope = node.get_friendly_name().split("/")[0]
        module = scope.removeprefix("__module.")
        if module == scope:
            continue
        if node.get_type_name() == "MatMul":
            layers[module] = node
        elif node.get_type_name() == "Multiply" and (factor := _factor(node)) is not None:
            norms[module] = factor
    return layers, norms


def other_weights(model: ov.Model) -> list[str]:
    """Names of an IR's nodes with weights of kinds that no head is known to have: convolutions and biases."""
    found = []
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind.endswith("Convolution") or (kind == "Add" and _factor(node) is not None):
            found.append(node.get_friendly_name())
    return found


def _factor(node: ov.Node) -> NDArray[np.float32] | None:
    """What a multiplication multiplies rows by, `[size]`; `None` where that is computed or one number."""
    for port in node.inputs():
        value = evaluate(port.get_source_output().get_node())
        if value is not None and value.get_size() > 1:
            return np.array(value.data, np.float32).reshape(-1)
    return None
