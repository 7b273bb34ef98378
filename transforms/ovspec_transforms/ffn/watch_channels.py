"""Activated gates of feed-forward layers as outputs of the model, for calibration."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.ffn.ffn_layers import FfnLayer, activated_gate, ffn_layers

GATE_ACTIVATIONS = "gate_activations."


def watch_channels(model: ov.Model) -> list[FfnLayer]:
    """Add the output `gate_activations.N` f32 `[.., channels]` per gated MLP.

    Returns:
        The layers, as `ffn_layers` numbers them; none for a model without gated MLPs of a known form.

    Raises:
        ValueError: the layers are GatedMLP already, which does not return its activations.
    """
    layers, nodes = _watched(model)
    for layer in layers:
        _add_output(model, activated_gate(nodes[layer.name]), f"{GATE_ACTIVATIONS}{layer.index}")
    return layers


def _add_output(model: ov.Model, node: ov.Node, name: str) -> None:
    named = ops.convert(node, ov.Type.f32)
    named.output(0).set_names({name})
    model.add_results([ops.result(named)])


def _watched(model: ov.Model) -> tuple[list[FfnLayer], dict[str, ov.Node]]:
    layers = ffn_layers(model)
    if native := [layer.name for layer in layers if layer.native]:
        raise ValueError(
            f"layer {native[0]} is our operation, whose channels can't be watched: calibrate the model "
            "as exported without --sparse-ffn"
        )
    return layers, {node.get_friendly_name(): node for node in model.get_ops()}
