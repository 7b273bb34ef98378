"""Which linear layers of a graph LoRA adapters can add to."""

from __future__ import annotations

import openvino as ov

from ovspec_transforms.layers.rows import chosen_rows, pass_rows
from ovspec_transforms.linear.adapted_layer import AdaptedLayer
from ovspec_transforms.linear.native_linear import Arithmetic, find_layers


def adapted_layers(model: ov.Model, arithmetic: Arithmetic = "f32") -> tuple[AdaptedLayer, ...]:
    """The layers that `native_linear` replaces and that compute all rows of a pass: not the output layer.

    Args:
        model: behind all transforms that come before `native_linear`; it stays as it is.
        arithmetic: as of `native_linear`.
    """
    of_pass, chosen, layers = pass_rows(model), chosen_rows(model), list[AdaptedLayer]()
    for layer in find_layers(model, arithmetic)[0]:
        node, weights = layer.matmul, layer.weights
        if (node.get_name(), 0) in of_pass and not chosen[node.get_name()]:
            layers.append(AdaptedLayer(node.get_friendly_name(), weights.inputs, weights.out))
    return tuple(layers)
