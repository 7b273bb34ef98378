"""Block selection: every layer selects blocks, or anchor layers do, and those after them reuse the list."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_ops.key_summary.reference import summary_bytes
from ovspec_transforms.attention.anchors import anchor_of, check_anchor_layers
from ovspec_transforms.attention.paged_cache import (
    KEY_CACHE,
    QUERY,
    PagedLayer,
    paged_layers,
)
from ovspec_transforms.attention.route_rows import (
    VERIFY_ATTENTION,
    VERIFY_TABLES,
    select,
)
from ovspec_transforms.attention.selection import Selection
from ovspec_transforms.graph import add_output, add_parameter, find_parameter, rewrite_nodes, source_node
from ovspec_transforms.report import TransformReport

SUMMARISED_LENS = "summarised_lens"
VERIFY_BUDGETS = "verify_budgets"
VERIFY_COVERAGE = "verify_coverage"
SELECTED_COUNTS = "selected_counts"
SELECTED_BLOCKS = "selected_blocks"
SELECTING_QUERIES = "selecting_queries"


class _SelectBlocks:
    """Gives every `VerifyAttention` a block list: its own, or that of the last layer that selects.

    Attributes:
        chosen: the `BlockSelect` node of each layer that selects.
    """

    def __init__(
        self,
        model: ov.Model,
        layers: Sequence[PagedLayer],
        anchors: tuple[int, ...],
        selection: Selection,
    ) -> None:
        self._model, self._anchors, self._selection = model, anchors, selection
        self._layers = {layer.name: layer for layer in layers}
        self.chosen: dict[int, ov.Node] = {}
        self._summarised = add_parameter(model, SUMMARISED_LENS, [-1], ov.Type.i32)
        self._tables = [
            find_parameter(model, VERIFY_TABLES),
            add_parameter(model, VERIFY_BUDGETS, [-1], ov.Type.i32),
            add_parameter(model, VERIFY_COVERAGE, [-1], ov.Type.f32),
        ]

    def run(self) -> TransformReport:
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
        select(node, *self.chosen[anchor].outputs())
        return True

    def _choose(self, stock: ov.Node, layer: PagedLayer, scale: float) -> ov.Node:
        rule, heads = self._selection, layer.num_kv_heads
        shape = [-1, heads, summary_bytes(layer.key_head_size)]
        summary = add_parameter(self._model, f"key_summary.{layer.index}", shape, ov.Type.u8)
        sizes = {"kv_heads": heads, "k_size": layer.key_head_size}
        query, keys = (stock.input(position).get_source_output() for position in (QUERY, KEY_CACHE))
        lengths = (self._tables[0].output(0), self._summarised.output(0))
        written = [keys, stock.output(0), summary.output(0), *lengths]
        updated = ovspec_ops.create("KeySummary", written, sizes)
        updated.set_friendly_name(f"{layer.name}/KeySummary")
        inputs = [query, summary.output(0), updated.output(0), *(table.output(0) for table in self._tables)]
        ends = {"sink_blocks": rule.sink_blocks, "local_blocks": rule.local_blocks}
        attributes = sizes | ends | {"rule": rule.rule, "scale": scale}
        chosen = ovspec_ops.create("BlockSelect", inputs, attributes)
        chosen.set_friendly_name(f"{layer.name}/BlockSelect")
        return chosen


def select_blocks(
    model: ov.Model,
    anchor_layers: Sequence[int] | None = None,
    selection: Selection | None = None,
    watches: bool = False,
) -> TransformReport:
    """Make the verification attention of a routed model sparse.

    Layers with a sliding window stay dense, because they read little.

    Adds the inputs `verify_budgets` i32 `[sequences]` (blocks to keep, -1: all), `verify_coverage` f32
    `[sequences]` (share of the estimated attention mass to keep, 1: no such limit), `summarised_lens` i32
    `[sequences]` (tokens that have summaries, -1: the pass makes none) and, per layer N that selects,
    `key_summary.N` u8 `[blocks, kv_heads, bytes of a summary]`. Adds the outputs `selected_counts`
    i32 `[sparse layers, kv_heads, sequences]` (-1: all), from which the density of a pass is computed, and
    `selected_blocks` i32 `[layers that select, kv_heads, N]`, their lists; none where nobody selects.

    Args:
        model: a model after `route_rows`.
        anchor_layers: by the paper's rule the layers that select; `None` takes `default_anchor_layers`.
        watches: whether to add the output `selecting_queries` f32 `[layers that select, rows, heads *
            k_size]`, the queries times the scale of attention.

    Raises:
        ValueError: anchors that do not ascend through the layers without a window, or that the rule does not
            have; layers whose KV heads differ in number, so that they can't share a list.
    """
    layers = selecting_layers(model)
    indices = [layer.index for layer in layers]
    selection = selection or Selection()
    anchors = check_anchor_layers(anchor_layers, indices, selection.rule)
    lists = _SelectBlocks(model, layers, anchors, selection)
    report = lists.run()
    read = [lists.chosen[anchor_of(index, anchors)] for index in indices]
    _add_stacked(model, read, 1, SELECTED_COUNTS)
    _add_stacked(model, [lists.chosen[anchor] for anchor in anchors], 0, SELECTED_BLOCKS)
    if watches:
        queries = [_scaled_query(lists.chosen[anchor]) for anchor in anchors]
        _add_stacked(model, queries, 0, SELECTING_QUERIES)
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


def _scaled_query(chosen: ov.Node) -> ov.Node:
    query = chosen.input(0).get_source_output()
    return ops.multiply(query, ops.constant(chosen.get_attributes()["scale"], ov.Type.f32))


def _add_stacked(model: ov.Model, nodes: Sequence[ov.Node], output: int, name: str) -> None:
    axis = ops.constant(0, ov.Type.i64)
    stacked = ops.concat([ops.unsqueeze(node.output(output), axis) for node in nodes], 0)
    add_output(model, stacked, name)
