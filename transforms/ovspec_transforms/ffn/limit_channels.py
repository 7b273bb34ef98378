"""Channel limits: the channels of gated MLPs that a pass reads, decided once per pass and layer."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.ffn.ffn_layers import GATED_MLP, LIMITS, ffn_layers
from ovspec_transforms.graph import add_output, add_parameter, let_read, nodes_of_type
from ovspec_transforms.report import TransformReport

VERIFY_CHANNEL_LIMITS = "verify_channel_limits"
VERIFY_ROW_WEIGHTS = "verify_row_weights"
CHANNELS_READ = "channels_read"


def limit_channels(model: ov.Model) -> TransformReport:
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
    limits = add_parameter(model, VERIFY_CHANNEL_LIMITS, [len(layers)], ov.Type.f32)
    weights, counts = add_parameter(model, VERIFY_ROW_WEIGHTS, [-1], ov.Type.f32), list[ov.Output]()
    for layer, node in zip(layers, nodes_of_type(model, GATED_MLP), strict=True):
        inputs = [node.input(position).get_source_output() for position in range(LIMITS)]
        inputs += [limits.output(0), weights.output(0)]
        limited = ovspec_ops.create(GATED_MLP, inputs, {**node.get_attributes(), "layer": layer.index})
        limited.set_friendly_name(layer.name)
        let_read(node.output(0), limited.output(0))
        counts.append(limited.output(1))
    add_output(model, ops.concat(counts, 0), CHANNELS_READ)
    model.validate_nodes_and_infer_types()
    return TransformReport("LimitChannels", tuple(layer.name for layer in layers))
