"""Gated MLPs that OpenVINO's CPU plugin does not fuse into one node."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.ffn.ffn_layers import ACTIVATIONS
from ovspec_transforms.graph import let_read, nodes_of_type, source_node
from ovspec_transforms.report import TransformReport


def gated_products(model: ov.Model) -> list[ov.Node]:
    """The products `activation(gate) * up` that the plugin looks for."""
    return [
        node
        for node in nodes_of_type(model, "Multiply")
        if node.get_attributes()["auto_broadcast"] == "numpy"
        and any(source_node(node, side).get_type_name() in ACTIVATIONS for side in range(2))
    ]


def keep_mlps_apart(model: ov.Model) -> TransformReport:
    """Compute gate, up and down projection by a node each, with the same values.

    With AMX, in bf16 or f16, the plugin fuses the three into one node (LLMMLP), which halves the number of
    threads and divides by it: with one thread the process ends (OpenVINO 2026.4). It looks for a product with
    numpy's broadcast; gate and up have one shape, so none is needed.
    """
    changed = []
    for node in gated_products(model):
        product = ops.multiply(node.input_value(0), node.input_value(1), auto_broadcast="none")
        product.set_friendly_name(node.get_friendly_name())
        let_read(node.output(0), product.output(0))
        changed.append(node.get_friendly_name())
    return TransformReport("KeepMlpsApart", tuple(changed))
