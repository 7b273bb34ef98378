"""The activated gates of feed-forward layers as outputs of the model, for calibration."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.ffn_layers import FfnLayer, ffn_layers, match_ffn

GATE_ACTIVATIONS = "gate_activations."


def watch_channels(model: ov.Model) -> list[FfnLayer]:
    """Add the output `gate_activations.N` f32 `[.., channels]` per gated MLP.

    Returns:
        The layers, as `ffn_layers` numbers them; none for a model without gated MLPs of a known form.

    Raises:
        ValueError: they are our operation already, which keeps its activations to itself.
    """
    layers = ffn_layers(model)
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    for layer in layers:
        if layer.native:
            raise ValueError(
                f"layer {layer.name} is our operation, whose channels can't be watched: calibrate the model "
                "as exported without --sparse-ffn"
            )
        gate = match_ffn(nodes[layer.name]).gate
        users = [port.get_node() for port in gate.output(0).get_target_inputs()]
        activated = next(node for node in users if node.get_type_name() in ("Swish", "Gelu"))
        named = ops.convert(activated, ov.Type.f32)
        named.output(0).set_names({f"{GATE_ACTIVATIONS}{layer.index}"})
        model.add_results([ops.result(named)])
    return layers
