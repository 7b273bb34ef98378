"""Activated gates of feed-forward layers as outputs of the model, for calibration."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.ffn.ffn_layers import FfnLayer, activated_gate, ffn_layers
from ovspec_transforms.graph import add_output

GATE_ACTIVATIONS = "gate_activations."


def watch_channels(model: ov.Model) -> list[FfnLayer]:
    """Add the output `gate_activations.N` f32 `[.., channels]` per gated MLP.

    Returns:
        The layers, as `ffn_layers` numbers them; none for a model without gated MLPs of a known form.

    Raises:
        ValueError: the layers are GatedMLP already, which does not return its activations.
    """
    layers = ffn_layers(model)
    if native := [layer.name for layer in layers if layer.native]:
        raise ValueError(
            f"layer {native[0]} is our operation, whose channels can't be watched: calibrate the model "
            "as exported without --sparse-ffn"
        )
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    for layer in layers:
        gate = ops.convert(activated_gate(nodes[layer.name]), ov.Type.f32)
        add_output(model, gate, f"{GATE_ACTIVATIONS}{layer.index}")
    return layers
