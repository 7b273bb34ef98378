"""Block selection: anchor layers choose blocks, the layers after them reuse the choice."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.graph import NodePass, add_parameter, find_parameter, run_pass
from ovspec_transforms.paged_cache import (
    BLOCK_INDICES,
    BLOCK_INDICES_BEGINS,
    KEY_CACHE,
    PAST_LENS,
    QUERY,
    SUBSEQUENCE_BEGINS,
    PagedLayer,
    paged_layers,
)
from ovspec_transforms.report import PassReport
from ovspec_transforms.route_rows import (
    VERIFY_ATTENTION,
    VERIFY_BLOCK_INDICES,
    VERIFY_BLOCK_INDICES_BEGINS,
    VERIFY_PAST_LENS,
)

VERIFY_BUDGETS = "verify_budgets"
SELECTED_COUNTS = "selected_counts"
_SELECTED_BLOCKS_INPUT, _SELECTED_COUNTS_INPUT = 8, 9


def default_anchor_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """The default rule: the first three layers, then every fourth.

    Early layers attend most differently from each other. A calibrated list replaces this one.

    Args:
        layers: the layers that can select, ascending (those without a sliding window).
    """
    return tuple(layer for rank, layer in enumerate(layers) if rank < 3 or (rank - 2) % 4 == 0)


def check_anchor_layers(anchors: Sequence[int], layers: Sequence[int]) -> tuple[int, ...]:
    """Return the anchors, or raise `ValueError` unless they ascend through `layers` from its first."""
    ascending = all(a < b for a, b in itertools.pairwise(anchors))
    if not anchors or anchors[0] != layers[0] or not ascending or not set(anchors) <= set(layers):
        raise ValueError(
            f"anchor_layers={list(anchors)}: expected ascending numbers out of {list(layers)} that "
            f"start with {layers[0]}, e.g. {list(default_anchor_layers(layers))}"
        )
    return tuple(anchors)


class SelectBlocks(NodePass):
    """Give every `VerifyAttention` a block list: its own at an anchor layer, else the last anchor's."""

    def __init__(self, model: ov.Model, layers: Sequence[PagedLayer], anchors: tuple[int, ...]) -> None:
        super().__init__(VERIFY_ATTENTION)
        self._anchors = anchors
        self._layers = {layer.name: layer for layer in layers}
        self._chosen: dict[int, ov.Node] = {}
        self._budgets = add_parameter(model, VERIFY_BUDGETS, [-1], ov.Type.i32)
        self._past_lens = find_parameter(model, VERIFY_PAST_LENS)
        self._blocks = find_parameter(model, VERIFY_BLOCK_INDICES)
        self._begins = find_parameter(model, VERIFY_BLOCK_INDICES_BEGINS)
        self._model = model

    def rewrite(self, node: ov.Node) -> bool:
        """Connect the block list; anchors are met before the layers that reuse them."""
        stock = node.input(3).get_source_output().get_node()
        layer = self._layers.get(stock.get_friendly_name())
        if layer is None:
            return False
        anchor = self._anchors[bisect_right(self._anchors, layer.index) - 1]
        if anchor == layer.index and anchor not in self._chosen:
            self._chosen[anchor] = self._choose(stock, layer)
        chosen = self._chosen[anchor]
        if node.input(_SELECTED_BLOCKS_INPUT).get_source_output().get_node() == chosen:
            return False
        node.input(_SELECTED_BLOCKS_INPUT).replace_source_output(chosen.output(0))
        node.input(_SELECTED_COUNTS_INPUT).replace_source_output(chosen.output(1))
        return True

    def _choose(self, stock: ov.Node, layer: PagedLayer) -> ov.Node:
        shape = [-1, layer.num_kv_heads, layer.key_head_size]
        summary = add_parameter(self._model, f"key_summary.{layer.index}", shape, ov.Type.f32)
        sizes = {"kv_heads": layer.num_kv_heads, "k_size": layer.key_head_size}
        query, keys = (stock.input(position).get_source_output() for position in (QUERY, KEY_CACHE))
        written = [
            stock.input(position).get_source_output()
            for position in (PAST_LENS, SUBSEQUENCE_BEGINS, BLOCK_INDICES, BLOCK_INDICES_BEGINS)
        ]
        updated = ovspec_ops.create("KeySummary", [keys, stock.output(0), summary.output(0), *written], sizes)
        updated.set_friendly_name(f"{layer.name}/KeySummary")
        tables = [self._past_lens, self._blocks, self._begins, self._budgets]
        inputs = [query, summary.output(0), updated.output(0), written[1]]
        chosen = ovspec_ops.create("BlockSelect", inputs + [table.output(0) for table in tables], sizes)
        chosen.set_friendly_name(f"{layer.name}/BlockSelect")
        return chosen

    def counts(self) -> list[ov.Node]:
        """Per layer that is sparse, the `BlockSelect` node whose list it uses, in layer order."""
        layers = sorted(layer.index for layer in self._layers.values())
        return [self._chosen[self._anchors[bisect_right(self._anchors, layer) - 1]] for layer in layers]


def select_blocks(model: ov.Model, anchor_layers: Sequence[int] | None = None) -> PassReport:
    """Make the verification attention of a routed model sparse.

    Layers with a sliding window stay dense: they read little as it is.

    Adds the inputs `verify_budgets` i32 `[sequences]` (blocks to keep, -1: all) and, per anchor
    layer N, `key_summary.N` f32 `[blocks, kv_heads, size]`; adds the output `selected_counts` i32
    `[sparse layers, kv_heads, sequences]` (-1: all), from which the density of a pass is computed.

    Args:
        model: a model after `route_rows`.
        anchor_layers: layers that select for themselves; `None` takes `default_anchor_layers`.

    Raises:
        ValueError: anchors that do not ascend through the layers without a window, or layers whose
            KV heads differ in number, so that they can't share a list.
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
    indices = [layer.index for layer in layers]
    anchors = check_anchor_layers(
        default_anchor_layers(indices) if anchor_layers is None else anchor_layers, indices
    )
    node_pass = SelectBlocks(model, layers, anchors)
    report = run_pass(model, node_pass).require(len(layers))
    axis = ops.constant(0, ov.Type.i64)
    stacked = ops.concat([ops.unsqueeze(node.output(1), axis) for node in node_pass.counts()], 0)
    stacked.output(0).set_names({SELECTED_COUNTS})
    model.add_results([ops.result(stacked)])
    return report
