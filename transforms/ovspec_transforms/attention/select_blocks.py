"""Block selection: anchor layers select blocks, the layers after them reuse the list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.attention.anchors import anchor_of, check_anchor_layers
from ovspec_transforms.attention.paged_cache import (
    BLOCK_INDICES,
    BLOCK_INDICES_BEGINS,
    KEY_CACHE,
    PAST_LENS,
    QUERY,
    SUBSEQUENCE_BEGINS,
    PagedLayer,
    paged_layers,
)
from ovspec_transforms.attention.route_rows import (
    VERIFY_ATTENTION,
    VERIFY_BLOCK_INDICES,
    VERIFY_BLOCK_INDICES_BEGINS,
    VERIFY_PAST_LENS,
    VERIFY_TABLES,
    select,
)
from ovspec_transforms.attention.selection import Selection
from ovspec_transforms.graph import add_output, add_parameter, find_parameter, rewrite_nodes, source_node
from ovspec_transforms.report import PassReport

VERIFY_BUDGETS = "verify_budgets"
VERIFY_COVERAGE = "verify_coverage"
VERIFY_REFRESH = "verify_refresh"
SELECTED_COUNTS = "selected_counts"
SELECTED_BLOCKS = "selected_blocks"


class _SelectBlocks:
    """Gives every `VerifyAttention` a block list: its own at an anchor layer, else the last anchor's.

    With `attend` false every anchor selects, but attention stays dense.

    Attributes:
        chosen: the `BlockSelect` node of each anchor.
    """

    def __init__(
        self,
        model: ov.Model,
        layers: Sequence[PagedLayer],
        anchors: tuple[int, ...],
        selection: Selection,
        attend: bool = True,
    ) -> None:
        self._model, self._anchors, self._selection, self._attend = model, anchors, selection, attend
        self._layers = {layer.name: layer for layer in layers}
        self.chosen: dict[int, ov.Node] = {}
        find_parameter(model, VERIFY_TABLES)
        tables = (VERIFY_BLOCK_INDICES, VERIFY_BLOCK_INDICES_BEGINS)
        self._tables = [
            add_parameter(model, VERIFY_PAST_LENS, [-1], ov.Type.i32),
            *(add_parameter(model, name, [-1], ov.Type.i32) for name in tables),
            add_parameter(model, VERIFY_BUDGETS, [-1], ov.Type.i32),
            add_parameter(model, VERIFY_COVERAGE, [-1], ov.Type.f32),
            # An empty input: every pass selects anew.
            add_parameter(model, VERIFY_REFRESH, [-1], ov.Type.i32)
            if selection.remembers
            else ops.constant(np.zeros(0, np.int32)),
        ]

    def run(self) -> PassReport:
        """Connect the lists of all layers.

        Raises:
            ValueError: a layer is not routed.
        """
        report = rewrite_nodes(self._model, "SelectBlocks", VERIFY_ATTENTION, self._rewrite)
        return report.require(len(self._layers))

    def _rewrite(self, node: ov.Node) -> bool:
        """Connect one layer's list; anchors come before the layers that reuse theirs."""
        stock = source_node(node, 3)
        layer = self._layers.get(stock.get_friendly_name())
        if layer is None:
            return False
        anchor = anchor_of(layer.index, self._anchors)
        if anchor == layer.index:
            self.chosen[anchor] = self._choose(stock, layer, node.get_attributes()["scale"])
        if self._attend:
            select(node, *self.chosen[anchor].outputs())
        return True

    def _choose(self, stock: ov.Node, layer: PagedLayer, scale: float) -> ov.Node:
        rule, heads = self._selection, layer.num_kv_heads
        shape = [-1, heads, rule.summary_size(layer.key_head_size)]
        summary = add_parameter(self._model, f"key_summary.{layer.index}", shape, ov.Type.f32)
        sizes = {"kv_heads": heads, "k_size": layer.key_head_size, "summary": rule.summary}
        query, keys = (stock.input(position).get_source_output() for position in (QUERY, KEY_CACHE))
        written = [
            stock.input(position).get_source_output()
            for position in (PAST_LENS, SUBSEQUENCE_BEGINS, BLOCK_INDICES, BLOCK_INDICES_BEGINS)
        ]
        updated = ovspec_ops.create("KeySummary", [keys, stock.output(0), summary.output(0), *written], sizes)
        updated.set_friendly_name(f"{layer.name}/KeySummary")
        kept = (
            add_parameter(self._model, f"kept_blocks.{layer.index}", [-1, heads], ov.Type.i32)
            if rule.remembers
            else ops.constant(np.zeros((0, heads), np.int32))
        )
        begins = add_parameter(self._model, "subsequence_begins", [-1], ov.Type.i32).output(0)
        inputs = [query, summary.output(0), updated.output(0), begins]
        inputs += [table.output(0) for table in (*self._tables, kept)]
        ends = {"sink_blocks": rule.sink_blocks, "local_blocks": rule.local_blocks}
        attributes = sizes | ends | {"query": rule.query, "scale": scale}
        chosen = ovspec_ops.create("BlockSelect", inputs, attributes)
        chosen.set_friendly_name(f"{layer.name}/BlockSelect")
        return chosen


def select_blocks(
    model: ov.Model, anchor_layers: Sequence[int] | None = None, selection: Selection | None = None
) -> PassReport:
    """Make the verification attention of a routed model sparse.

    Layers with a sliding window stay dense, because they read little.

    Adds the inputs `verify_budgets` i32 `[sequences]` (blocks to keep, -1: all), `verify_coverage` f32
    `[sequences]` (share of the estimated attention mass to keep, 1: no such limit) and, per anchor layer N,
    `key_summary.N` f32 `[blocks, kv_heads, values of a summary]`; where lists outlive their pass also
    `verify_refresh` i32 `[sequences]` (0: reuse) and `kept_blocks.N` i32 `[entries of verify_block_indices,
    kv_heads]`, the lists of the pass's sequences, updated in place. Adds the
    outputs `selected_counts` i32 `[sparse layers, kv_heads, sequences]` (-1: all), from which the density of
    a pass is computed, and `selected_blocks` i32 `[anchor layers, kv_heads, N]`, the lists of the anchors.

    Args:
        model: a model after `route_rows`.
        anchor_layers: layers that select for themselves; `None` takes `default_anchor_layers`.

    Raises:
        ValueError: anchors that do not ascend through the layers without a window, or layers whose
            KV heads differ in number, so that they can't share a list.
    """
    layers = selecting_layers(model)
    indices = [layer.index for layer in layers]
    anchors = check_anchor_layers(anchor_layers, indices)
    lists = _SelectBlocks(model, layers, anchors, selection or Selection())
    report = lists.run()
    read = [lists.chosen[anchor_of(index, anchors)] for index in indices]
    _add_stacked(model, read, 1, SELECTED_COUNTS)
    _add_stacked(model, [lists.chosen[anchor] for anchor in anchors], 0, SELECTED_BLOCKS)
    return report


def watch_selections(model: ov.Model, selection: Selection | None = None) -> PassReport:
    """Let every layer of a routed model select, and return the lists, while attention stays dense.

    Adds inputs as `select_blocks` does with every layer an anchor, and the outputs `selected_blocks` i32
    `[layers, kv_heads, N]` and `selected_counts` i32 `[layers, kv_heads, sequences]`, over the layers without
    a sliding window. For calibration.

    Raises:
        ValueError: as `select_blocks`.
    """
    layers = selecting_layers(model)
    anchors = tuple(layer.index for layer in layers)
    lists = _SelectBlocks(model, layers, anchors, selection or Selection(), attend=False)
    report = lists.run()
    for output, name in enumerate((SELECTED_BLOCKS, SELECTED_COUNTS)):
        _add_stacked(model, [lists.chosen[anchor] for anchor in anchors], output, name)
    return report


def selecting_layers(model: ov.Model) -> list[PagedLayer]:
    """The layers of a paged model that can share block lists per KV head: those without a sliding window.

    Raises:
        ValueError: there are none, or their KV heads differ in number.
    """
    layers = [layer for layer in paged_layers(model) if not layer.sliding_window]
    if not layers:
        raise ValueError("every layer of this model has a sliding window and stays dense; use verify='dense'")
    if len({layer.num_kv_heads for layer in layers}) != 1:
        heads = sorted({layer.num_kv_heads for layer in layers})
        raise ValueError(
            f"block lists are shared between layers with one number of KV heads, this model has {heads}; "
            "use verify='dense'"
        )
    return layers


def _add_stacked(model: ov.Model, nodes: Sequence[ov.Node], output: int, name: str) -> None:
    axis = ops.constant(0, ov.Type.i64)
    stacked = ops.concat([ops.unsqueeze(node.output(output), axis) for node in nodes], 0)
    add_output(model, stacked, name)
