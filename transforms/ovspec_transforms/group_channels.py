"""Gated MLPs in parts of their channels, of which a pass computes some, with stock operations only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory

from ovspec_transforms.expert_weights import UnknownPatternError
from ovspec_transforms.ffn_layers import FfnLayer, FfnPattern, Product, ffn_layers, match_ffn
from ovspec_transforms.graph import NodePass, add_parameter, run_pass
from ovspec_transforms.limit_channels import (
    CHANNEL_SCORES,
    CHANNELS_READ,
    VERIFY_CHANNEL_LIMITS,
    VERIFY_ROW_WEIGHTS,
    ChannelScore,
)
from ovspec_transforms.report import PassReport
from ovspec_transforms.weight_parts import WeightParts

_FACTORY = NodeFactory("opset4")
Channels = NDArray[np.int32]


def _i64(*values: int) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def _scalar(value: int) -> ov.Node:
    return ops.constant(np.array(value, np.int64))


def _activated(rows: ov.Node, activation: str) -> ov.Node:
    if activation == "silu":
        # `ops.swish` adds an input for beta, with which the plugin's fusions do not match.
        return _FACTORY.create("Swish", [rows.output(0)])
    return ops.gelu(rows, activation.removeprefix("gelu_"))


def leading_parts(order: Channels, share: float, blocks: int) -> list[Channels]:
    """A layer's channels in two parts: the most important ones, and the others.

    Args:
        order: i32 `[channels]`, the most important first.
        share: of the channels that the first part takes, of every block as many.
        blocks: of neighbouring channels, as `FfnLayer.blocks`.

    Returns:
        The parts i32 `[channels of a part]`, ascending; one alone where the first takes all.
    """
    size = len(order) // blocks
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    ranks = places.reshape(blocks, size).argsort(1).argsort(1).reshape(-1)
    first = ranks < max(1, round(share * size))
    parts = [np.flatnonzero(part).astype(np.int32) for part in (first, ~first)]
    return [part for part in parts if len(part)]


class _Weights:
    """Gate, up and down of one gated MLP, to take parts of."""

    def __init__(self, pattern: FfnPattern) -> None:
        self._pattern = pattern
        self._gate = WeightParts.of(pattern.gate.matmul, "gate")
        self._up = self._gate
        if pattern.up.matmul.get_friendly_name() != pattern.gate.matmul.get_friendly_name():
            self._up = WeightParts.of(pattern.up.matmul, "up")
        self._down = WeightParts.of(pattern.down, "down")

    def gate(self, rows: ov.Node, channels: Channels) -> ov.Node:
        """Activated gates f32 `[rows, channels]`."""
        gate = ops.matmul(rows, _rows(self._gate, self._pattern.gate, channels), False, True)
        return _activated(gate, self._pattern.activation)

    def output(self, rows: ov.Node, channels: Channels) -> ov.Node:
        """What some channels add to the layer's output, f32 `[rows, hidden]`; channels ascend."""
        up = ops.matmul(rows, _rows(self._up, self._pattern.up, channels), False, True)
        inner = ops.multiply(self.gate(rows, channels), up)
        return ops.matmul(inner, self._down.columns(channels).node(), False, True)


def _rows(weights: WeightParts, product: Product, channels: Channels) -> ov.Node:
    offset = 0 if product.half is None else product.half * product.shape[0]
    return weights.rows(channels + offset).node()


class GroupChannels(NodePass):
    """Replace gated MLPs by the sums of their parts, each fed all rows of a pass or none."""

    def __init__(
        self,
        model: ov.Model,
        layers: list[FfnLayer],
        parts: Sequence[Sequence[Channels]],
        probes: Sequence[NDArray[np.int32]] | None,
        score: ChannelScore,
    ) -> None:
        super().__init__("MatMul")
        self._layers = {layer.name: layer for layer in layers}
        self._parts, self._probes, self._score = parts, probes, score
        limits = add_parameter(model, VERIFY_CHANNEL_LIMITS, [len(layers)], ov.Type.f32)
        self._weights: ov.Node | None = None
        if probes is not None and score == "mean":
            self._weights = add_parameter(model, VERIFY_ROW_WEIGHTS, [-1], ov.Type.f32)
        sizes = np.zeros((len(layers), max(map(len, parts))), np.int32)
        for row, layer in zip(sizes, parts, strict=True):
            row[: len(layer)] = [len(part) for part in layer]
        self._kept, self.counts = _places(limits, sizes)
        self._done: set[str] = set()

    def rewrite(self, node: ov.Node) -> bool:
        """Replace one gated MLP."""
        layer = self._layers.get(node.get_friendly_name())
        if layer is None or layer.name in self._done or len(self._parts[layer.index]) == 1:
            return False
        self._done.add(layer.name)
        pattern = match_ffn(node)
        try:
            output = self._sum(pattern, layer.index)
        except UnknownPatternError as error:
            raise ValueError(f"layer {layer.name}: {error}") from error
        output.set_friendly_name(layer.name)
        for port in list(node.output(0).get_target_inputs()):
            port.replace_source_output(output.output(0))
        return True

    def _sum(self, pattern: FfnPattern, index: int) -> ov.Node:
        shape = ops.shape_of(pattern.rows, "i64")
        hidden = pattern.gate.shape[1]
        rows = ops.reshape(pattern.rows, _i64(-1, hidden), special_zero=False)
        count = ops.gather(ops.shape_of(rows, "i64"), _i64(0), _scalar(0))
        parts, weights = self._parts[index], _Weights(pattern)
        kept = ops.gather(self._kept, _scalar(index), _scalar(0))
        fed = ops.multiply(ops.slice(kept, _i64(0), _i64(len(parts)), _i64(1), _i64(0)), count)
        if self._probes is not None:
            gates = weights.gate(rows, self._probes[index].reshape(-1))
            fed = ops.scatter_elements_update(fed, self._ranked(gates, len(parts)), fed, _scalar(0))
        stops = ops.split(fed, _scalar(0), len(parts))
        outputs = []
        for place, part in enumerate(parts):
            taken = ops.slice(rows, _i64(0), stops.output(place), _i64(1), _i64(0))
            always = place == 0 and self._probes is None
            outputs.append(weights.output(rows if always else taken, np.sort(part)))
        # The parts that were fed, one behind the other.
        dims = ops.concat([_i64(-1), count, _i64(hidden)], 0)
        stacked = ops.reshape(ops.concat(outputs, 0), dims, special_zero=False)
        return ops.reshape(ops.reduce_sum(stacked, _i64(0)), shape, special_zero=False)

    def _ranked(self, gates: ov.Node, groups: int) -> ov.Node:
        """The groups by their probes' scores over the rows, the highest first: i32 `[groups]`."""
        split = ops.reshape(ops.abs(gates), _i64(0, groups, -1), special_zero=True)
        scores = ops.reduce_sum(split, _i64(2))
        if self._weights is None:
            scores = ops.reduce_max(scores, _i64(0))
        else:
            weighted = ops.multiply(scores, ops.unsqueeze(self._weights, _i64(1)))
            scores = ops.reduce_sum(weighted, _i64(0))
        ranked = ops.topk(scores, _scalar(groups), 0, "max", "value", index_element_type="i32")
        return ranked.output(1)


def _places(limits: ov.Node, sizes: NDArray[np.int32]) -> tuple[ov.Node, ov.Node]:
    """Which places of a layer's parts, the most important first, are kept, and the channels in them.

    Args:
        limits: f32 `[layers]`.
        sizes: channels of the parts, i32 `[layers, parts]`; 0 where a layer has no more.

    Returns:
        i64 `[layers, parts]` of 0 and 1, and i32 `[layers]`.
    """
    before = ops.constant((np.cumsum(sizes, 1) - sizes).astype(np.float32))
    limit = ops.unsqueeze(limits, _i64(1))
    within = ops.logical_or(ops.less(before, limit), ops.less(limit, np.array(0.0, np.float32)))
    counts = ops.reduce_sum(ops.multiply(ops.convert(within, "i32"), ops.constant(sizes)), _i64(1))
    return ops.convert(within, "i64"), counts


def _check(
    layers: list[FfnLayer],
    parts: Sequence[Sequence[Channels]],
    probes: Sequence[NDArray[np.int32]] | None,
    score: ChannelScore,
) -> None:
    if score not in CHANNEL_SCORES:
        raise ValueError(f"channel score {score!r}: expected one of {', '.join(CHANNEL_SCORES)}")
    if not layers:
        raise ValueError("the model has no gated MLP of a known form whose channels could be grouped")
    if native := [layer.name for layer in layers if layer.native]:
        raise ValueError(
            f"layer {native[0]} is our operation, whose channels can't be grouped: take the model as "
            "exported without --sparse-ffn"
        )
    for what, values in (("parts", parts), ("probes", probes)):
        if values is not None and len(values) != len(layers):
            raise ValueError(f"{what} of {len(values)} layers, expected {len(layers)}: one per gated MLP")
    for layer in layers:
        mine = [np.asarray(part) for part in parts[layer.index]]
        if min(map(len, mine), default=0) == 0 or not np.array_equal(
            np.sort(np.concatenate(mine)), np.arange(layer.channels)
        ):
            raise ValueError(
                f"the parts of layer {layer.name} do not hold each of its {layer.channels} channels once"
            )
        if probes is None:
            continue
        if len({len(part) for part in mine}) > 1:
            raise ValueError(f"the groups of layer {layer.name} are not of one size")
        probe = np.asarray(probes[layer.index])
        if probe.ndim != 2 or len(probe) != len(mine) or probe.size == 0:
            raise ValueError(
                f"probes of layer {layer.name} are {list(probe.shape)}, expected some channels for each of "
                f"its {len(mine)} groups"
            )
        if probe.min() < 0 or probe.max() >= layer.channels:
            raise ValueError(f"probes of layer {layer.name} are not among its {layer.channels} channels")


def group_ffn_channels(
    model: ov.Model,
    parts: Sequence[Sequence[Channels]],
    probes: Sequence[NDArray[np.int32]] | None = None,
    score: ChannelScore = "max",
) -> PassReport:
    """Let a pass limit the channels that its gated MLPs compute, with stock operations, on any device.

    Every gated MLP becomes the sum of its parts, MatMuls of their own with weights that are compressed as
    before. A part that a pass does not keep gets no rows, and MatMuls without rows are not computed. Adds
    inputs and outputs as `limit_channels` does: `verify_channel_limits` f32 `[gated MLPs]` (-1: all
    channels), with probes and the score "mean" `verify_row_weights` f32 `[rows]`, and the output
    `channels_read` i32 `[gated MLPs]`. A part is kept while those before it have fewer channels than the
    limit, which holds for all rows of a pass.

    Args:
        model: with gated MLPs as optimum-intel exports them, stateful or paged; changed in place.
        parts: per gated MLP its channels in parts, i32 `[channels of a part]` each. Where several inputs of
            the down projection share a scale, a part takes as many channels of each such block. A layer with
            one part is left as it is.
        probes: without them, parts are kept in the order that they are given in. With them, i32
            `[parts, probes]` per gated MLP, by their scores in the pass: the sum of the activated gates'
            magnitudes of their probes, which are computed for every pass, beside the parts; parts of a layer
            are then of one size.
        score: of a part over the rows: "max", or the mean weighted by `verify_row_weights`.

    Raises:
        ValueError: no gated MLP of a known form, or parts, probes or a score that do not fit it.
    """
    layers = ffn_layers(model)
    _check(layers, parts, probes, score)
    node_pass = GroupChannels(model, layers, parts, probes, score)
    report = run_pass(model, node_pass).require(sum(len(layer) > 1 for layer in parts))
    node_pass.counts.output(0).set_names({CHANNELS_READ})
    model.add_results([ops.result(node_pass.counts)])
    return report
