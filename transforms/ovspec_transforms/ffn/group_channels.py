"""Gated MLPs in parts of their channels, of which a pass computes some, with stock operations only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory

from ovspec_transforms.ffn.ffn_layers import FfnLayer, FfnPattern, Product, ffn_layers, match_ffn
from ovspec_transforms.ffn.limit_channels import CHANNELS_READ, VERIFY_CHANNEL_LIMITS
from ovspec_transforms.graph import NodePass, add_parameter, run_pass
from ovspec_transforms.report import PassReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError
from ovspec_transforms.weights.weight_parts import WeightParts

_FACTORY = NodeFactory("opset4")
Channels = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class GroupEstimate:
    """How much a pass needs each group of a layer's channels: `mean |gates| @ weights + bias`.

    Attributes:
        probes: channels, i32 `[probes]`, whose activated gates are computed for every pass, beside the
            groups; their mean magnitude over its rows counts.
        weights: f32 `[probes, groups]`.
        bias: f32 `[groups]`.
    """

    probes: Channels
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]


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
        estimates: Sequence[GroupEstimate] | None,
    ) -> None:
        super().__init__("MatMul")
        self._layers = {layer.name: layer for layer in layers}
        self._parts, self._estimates = parts, estimates
        limits = add_parameter(model, VERIFY_CHANNEL_LIMITS, [len(layers)], ov.Type.f32)
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
        if self._estimates is not None:
            estimate = self._estimates[index]
            ranked = _ranked(weights.gate(rows, estimate.probes), estimate)
            fed = ops.scatter_elements_update(fed, ranked, fed, _scalar(0))
        stops = ops.split(fed, _scalar(0), len(parts))
        outputs = []
        for place, part in enumerate(parts):
            taken = ops.slice(rows, _i64(0), stops.output(place), _i64(1), _i64(0))
            always = place == 0 and self._estimates is None
            outputs.append(weights.output(rows if always else taken, np.sort(part)))
        # The parts that were fed, one behind the other.
        dims = ops.concat([_i64(-1), count, _i64(hidden)], 0)
        stacked = ops.reshape(ops.concat(outputs, 0), dims, special_zero=False)
        return ops.reshape(ops.reduce_sum(stacked, _i64(0)), shape, special_zero=False)


def _ranked(gates: ov.Node, estimate: GroupEstimate) -> ov.Node:
    """The groups by what activated gates f32 `[rows, probes]` say of them, highest first: i32 `[groups]`."""
    seen = ops.reduce_mean(ops.abs(gates), _i64(0), keep_dims=True)
    found = ops.add(
        ops.matmul(seen, ops.constant(estimate.weights), False, False), ops.constant(estimate.bias)
    )
    scores = ops.reshape(found, _i64(-1), special_zero=False)
    count = len(estimate.bias)
    return ops.topk(scores, _scalar(count), 0, "max", "value", index_element_type="i32").output(1)


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
    estimates: Sequence[GroupEstimate] | None,
) -> None:
    if not layers:
        raise ValueError("the model has no gated MLP of a known form whose channels could be grouped")
    if native := [layer.name for layer in layers if layer.native]:
        raise ValueError(
            f"layer {native[0]} is our operation, whose channels can't be grouped: take the model as "
            "exported without --sparse-ffn"
        )
    for what, values in (("parts", parts), ("estimates", estimates)):
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
        if estimates is not None:
            _check_estimate(layer, [len(part) for part in mine], estimates[layer.index])


def _check_estimate(layer: FfnLayer, sizes: list[int], estimate: GroupEstimate) -> None:
    if len(set(sizes)) > 1:
        raise ValueError(f"the groups of layer {layer.name} are not of one size")
    probes, weights, bias = estimate.probes, estimate.weights, estimate.bias
    if weights.shape != (len(probes), len(sizes)) or bias.shape != (len(sizes),):
        raise ValueError(
            f"the estimate of layer {layer.name} has weights {list(weights.shape)} and bias "
            f"{list(bias.shape)}, expected {[len(probes), len(sizes)]} and {[len(sizes)]}"
        )
    if not len(probes) or probes.min() < 0 or probes.max() >= layer.channels:
        raise ValueError(f"probes of layer {layer.name}: expected some of its {layer.channels} channels")


def group_ffn_channels(
    model: ov.Model,
    parts: Sequence[Sequence[Channels]],
    estimates: Sequence[GroupEstimate] | None = None,
) -> PassReport:
    """Let a pass limit the channels that its gated MLPs compute, with stock operations, on any device.

    Every gated MLP becomes the sum of its parts, MatMuls of their own with weights that are compressed as
    before. A part that a pass does not keep gets no rows, and MatMuls without rows are not computed. Adds the
    input `verify_channel_limits` f32 `[gated MLPs]` (-1: all channels) and the output `channels_read` i32
    `[gated MLPs]`, as `limit_channels` does. A part is kept while those before it have fewer channels than
    the limit, which holds for all rows of a pass.

    Args:
        model: with gated MLPs as optimum-intel exports them, stateful or paged; changed in place.
        parts: per gated MLP its channels in parts, i32 `[channels of a part]` each. Where several inputs of
            the down projection share a scale, a part takes as many channels of each such block. A layer with
            one part is left as it is.
        estimates: without them, parts are kept in the order that they are given in. With them, per gated
            MLP, those that they say most of in a pass; parts of a layer are then of one size.

    Raises:
        ValueError: no gated MLP of a known form, or parts or estimates that do not fit it.
    """
    layers = ffn_layers(model)
    _check(layers, parts, estimates)
    node_pass = GroupChannels(model, layers, parts, estimates)
    report = run_pass(model, node_pass).require(sum(len(layer) > 1 for layer in parts))
    node_pass.counts.output(0).set_names({CHANNELS_READ})
    model.add_results([ops.result(node_pass.counts)])
    return report
