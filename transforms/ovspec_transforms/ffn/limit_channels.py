"""Channel limits: the channels of gated MLPs that a pass reads, decided once per pass and layer."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.ffn.ffn_layers import GATED_MLP, LIMITS, FfnLayer, ffn_layers
from ovspec_transforms.graph import NodePass, add_output, add_parameter, let_read, run_pass
from ovspec_transforms.report import PassReport

VERIFY_CHANNEL_LIMITS = "verify_channel_limits"
VERIFY_ROW_WEIGHTS = "verify_row_weights"
CHANNELS_READ = "channels_read"


class LimitChannels(NodePass):
    """Connect every GatedMLP to the model's inputs that limit its channels."""

    def __init__(self, model: ov.Model, layers: list[FfnLayer]) -> None:
        super().__init__(GATED_MLP)
        self._layers = {layer.name: layer for layer in layers}
        self._limits = add_parameter(model, VERIFY_CHANNEL_LIMITS, [len(layers)], ov.Type.f32)
        self._weights = add_parameter(model, VERIFY_ROW_WEIGHTS, [-1], ov.Type.f32)
        self.counts: dict[int, ov.Output] = {}

    def rewrite(self, node: ov.Node) -> bool:
        """Limit one layer's channels."""
        layer = self._layers[node.get_friendly_name()]
        if layer.index in self.counts:
            return False
        inputs = [node.input(position).get_source_output() for position in range(LIMITS)]
        inputs += [self._limits.output(0), self._weights.output(0)]
        attributes = {**node.get_attributes(), "layer": layer.index}
        limited = ovspec_ops.create(GATED_MLP, inputs, attributes)
        limited.set_friendly_name(layer.name)
        self.counts[layer.index] = limited.output(1)
        let_read(node.output(0), limited.output(0))
        return True


def limit_channels(model: ov.Model) -> PassReport:
    """Let a pass limit the channels that its gated MLPs read; one set per layer for all limited rows.

    Adds the inputs `verify_channel_limits` f32 `[gated MLPs]` (how many channels a layer keeps, those with
    the largest activated gate over the limited rows; -1: all) and `verify_row_weights` f32 `[rows]` (0: a row
    that takes all channels, whatever the limit), and the output `channels_read` i32 `[gated MLPs]`: of how
    many channels each layer read the up and down weights.

    Args:
        model: a model after `sparse_ffn`; changed in place.

    Raises:
        ValueError: a model without GatedMLP.
    """
    layers = [layer for layer in ffn_layers(model) if layer.native]
    if not layers:
        raise ValueError("the model has no GatedMLP operation to limit: run sparse_ffn(model) first")
    node_pass = LimitChannels(model, layers)
    report = run_pass(model, node_pass).require(len(layers))
    counts = ops.concat([node_pass.counts[layer.index] for layer in layers], 0)
    add_output(model, counts, CHANNELS_READ)
    return report
