"""The activated gates of feed-forward layers as outputs of the model, for calibration."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.ffn.ffn_layers import FfnLayer, activated_gate, ffn_layers
from ovspec_transforms.weights.weight_parts import WeightParts

GATE_ACTIVATIONS = "gate_activations."
CHANNEL_ENERGIES = "channel_energies."
CHANNEL_GATES = "channel_gates."
_FIRST = np.array([0], np.int64)


def watch_channels(model: ov.Model) -> list[FfnLayer]:
    """Add the output `gate_activations.N` f32 `[.., channels]` per gated MLP.

    Returns:
        The layers, as `ffn_layers` numbers them; none for a model without gated MLPs of a known form.

    Raises:
        ValueError: they are our operation already, which keeps its activations to itself.
    """
    layers, nodes = _watched(model)
    for layer in layers:
        _add_output(model, activated_gate(nodes[layer.name]), f"{GATE_ACTIVATIONS}{layer.index}")
    return layers


def watch_contributions(model: ov.Model) -> list[FfnLayer]:
    """Add two outputs f32 `[channels]` per gated MLP, over all rows of a pass.

    `channel_energies.N`: the squared length of what a channel adds to the layer's output, summed.
    `channel_gates.N`: the mean magnitude of its activated gate.

    Returns, Raises: as `watch_channels`.
    """
    layers, nodes = _watched(model)
    for layer in layers:
        down = nodes[layer.name]
        norms = ops.constant(WeightParts.of(down, "down").column_norms())
        added = ops.multiply(_by_channel(down.input(0).get_source_output(), layer), norms)
        energy = ops.reduce_sum(ops.multiply(added, added), _FIRST)
        gates = ops.abs(_by_channel(activated_gate(down).output(0), layer))
        _add_output(model, energy, f"{CHANNEL_ENERGIES}{layer.index}")
        _add_output(model, ops.reduce_mean(gates, _FIRST), f"{CHANNEL_GATES}{layer.index}")
    return layers


def _by_channel(values: ov.Output, layer: FfnLayer) -> ov.Node:
    return ops.reshape(values, np.array([-1, layer.channels], np.int64), special_zero=False)


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
