"""Which channels of its gated MLPs a pass reads, decided once per pass and layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.ffn.ffn_layers import GATED_MLP, LIMITS, FfnLayer, ffn_layers
from ovspec_transforms.graph import NodePass, add_parameter, run_pass
from ovspec_transforms.report import PassReport

ChannelRule = Literal["threshold", "top_k", "static"]
ChannelScore = Literal["max", "mean"]
CHANNEL_RULES: tuple[ChannelRule, ...] = get_args(ChannelRule)
CHANNEL_SCORES: tuple[ChannelScore, ...] = get_args(ChannelScore)
VERIFY_CHANNEL_LIMITS = "verify_channel_limits"
VERIFY_ROW_WEIGHTS = "verify_row_weights"
CHANNELS_READ = "channels_read"


def _check(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r}: expected one of {', '.join(known)}")


class LimitChannels(NodePass):
    """Give every GatedMLP its rule and the model's inputs that it goes by."""

    def __init__(
        self,
        model: ov.Model,
        layers: list[FfnLayer],
        rule: ChannelRule,
        score: ChannelScore,
        orders: Sequence[NDArray[np.int32]] | None,
    ) -> None:
        super().__init__(GATED_MLP)
        self._rule = {"rule": rule, "score": score}
        self._layers = {layer.name: layer for layer in layers}
        self._orders = orders
        self._limits = add_parameter(model, VERIFY_CHANNEL_LIMITS, [len(layers)], ov.Type.f32)
        self._weights = add_parameter(model, VERIFY_ROW_WEIGHTS, [-1], ov.Type.f32)
        self.counts: dict[int, ov.Output] = {}

    def rewrite(self, node: ov.Node) -> bool:
        """Limit one layer's channels."""
        layer = self._layers[node.get_friendly_name()]
        if layer.index in self.counts:
            return False
        order = np.zeros((0,), np.int32)
        if self._orders is not None:
            order = np.ascontiguousarray(self._orders[layer.index], np.int32)
        inputs = [node.input(position).get_source_output() for position in range(LIMITS)]
        inputs += [self._limits.output(0), self._weights.output(0), ops.constant(order).output(0)]
        attributes = {**node.get_attributes(), **self._rule, "layer": layer.index}
        limited = ovspec_ops.create(GATED_MLP, inputs, attributes)
        limited.set_friendly_name(layer.name)
        self.counts[layer.index] = limited.output(1)
        for port in list(node.output(0).get_target_inputs()):
            port.replace_source_output(limited.output(0))
        return True


def _check_orders(
    orders: Sequence[NDArray[np.int32]] | None, layers: list[FfnLayer], rule: ChannelRule
) -> None:
    if (rule == "static") != (orders is not None):
        raise ValueError(f"channel rule {rule!r} with orders {orders is not None}: they belong to 'static'")
    if orders is None:
        return
    if len(orders) != len(layers):
        raise ValueError(f"orders of {len(orders)} layers, expected {len(layers)}: one per gated MLP")
    for layer, order in zip(layers, orders, strict=True):
        if sorted(np.asarray(order).tolist()) != list(range(layer.channels)):
            raise ValueError(
                f"the order of layer {layer.name} does not hold each of its {layer.channels} channels once"
            )


def limit_channels(
    model: ov.Model,
    rule: ChannelRule = "threshold",
    score: ChannelScore = "max",
    orders: Sequence[NDArray[np.int32]] | None = None,
) -> PassReport:
    """Let a pass limit the channels that its gated MLPs read; one set per layer for all limited rows.

    Adds the inputs `verify_channel_limits` f32 `[gated MLPs]` (-1: all channels) and `verify_row_weights`
    f32 `[rows]` (0: a row that takes all channels, whatever the limit), and the output `channels_read` i32
    `[gated MLPs]`: of how many channels each layer read the up and down weights.

    Args:
        model: a model after `sparse_ffn`.
        rule: "threshold": channels whose score is at least the limit. "top_k": as many as the limit says,
            those with the highest scores. "static": as many as the limit says, from the front of the
            layer's order; the gate's weights are not read for the others either.
        score: of a channel, from the limited rows' activated gates: "max": the largest magnitude, "mean":
            the mean one, weighted by `verify_row_weights`.
        orders: of rule "static": per gated MLP its channels, the most important first, i32 `[channels]`.

    Raises:
        ValueError: an unknown rule or score, orders that fit neither rule nor model, or a model without
            GatedMLP.
    """
    _check("channel rule", rule, CHANNEL_RULES)
    _check("channel score", score, CHANNEL_SCORES)
    layers = [layer for layer in ffn_layers(model) if layer.native]
    if not layers:
        raise ValueError("the model has no GatedMLP operation to limit: run sparse_ffn(model) first")
    _check_orders(orders, layers, rule)
    node_pass = LimitChannels(model, layers, rule, score, orders)
    report = run_pass(model, node_pass).require(len(layers))
    counts = ops.concat([node_pass.counts[layer.index] for layer in layers], 0)
    counts.output(0).set_names({CHANNELS_READ})
    model.add_results([ops.result(counts)])
    return report
