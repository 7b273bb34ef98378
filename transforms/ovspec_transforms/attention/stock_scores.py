"""Block summaries and scores with stock operations."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.paged_cache import KEY, QUERY, PagedLayer
from ovspec_transforms.graph import add_output, add_parameter, i64


class StockScores:
    """Scores every block of every sequence at the anchors, and summarises the blocks that the pass writes.

    All anchors share one input or output of a kind, side by side: a device waits for every output that it
    returns. Inputs and outputs are those of `select_blocks_stock`.

    Args:
        anchors: the layers that select, ascending.
    """

    def __init__(self, model: ov.Model, block_size: int, anchors: Sequence[PagedLayer]) -> None:
        self._model = model
        self._block_size = block_size
        self._tables = add_parameter(model, "select_tables", [-1, -1], ov.Type.i32)
        self._queries = add_parameter(model, "select_queries", [-1, 1], ov.Type.i32)
        self._sources = add_parameter(model, "select_sources", [-1, -1], ov.Type.i32)
        self._written = add_parameter(model, "summary_tokens", [-1, block_size], ov.Type.i32)
        self._held_rows = add_parameter(model, "held_rows", [-1, 1], ov.Type.i32)
        self._weights = add_parameter(model, "summary_weights", [-1, block_size], ov.Type.f32)
        numbers = [layer.index for layer in anchors]
        widths = [layer.num_kv_heads * layer.key_head_size for layer in anchors]
        held = add_parameter(model, "held_keys", [-1, sum(widths)], ov.Type.f32)
        summary = add_parameter(model, "key_summary.all", [-1, sum(widths)], ov.Type.f32)
        self._held = dict(zip(numbers, _split(held, 1, widths), strict=True))
        # [sequences, blocks, values of all anchors]
        old = ops.gather(summary, self._tables, i64(0))
        self._old = dict(zip(numbers, _split(old, 2, widths), strict=True))
        self._new_keys: list[ov.Node] = []
        self._new_summaries: list[ov.Node] = []

    def of(self, layer: PagedLayer) -> ov.Node:
        """Scores f32 `[sequences, kv_heads, blocks]`."""
        new = self._summarise(layer)
        query = self._query(layer)
        # [sequences, kv_heads, 1, blocks]
        split = i64([0, 0, layer.num_kv_heads, layer.key_head_size])
        old = ops.transpose(ops.reshape(self._old[layer.index], split, True), i64([0, 2, 1, 3]))
        of_old = ops.matmul(query, old, False, True)
        of_new = ops.matmul(query, ops.transpose(new, i64([1, 0, 2])), False, True)
        scores = ops.squeeze(ops.concat([of_old, of_new], 3), i64([2]))
        # For a block that this pass writes, the input holds an old summary, or that of another sequence.
        # No transpose around a Gather: with one KV head the CPU plugin would silently skip the operation.
        sources = ops.tile(ops.unsqueeze(self._sources, i64([1])), i64([1, layer.num_kv_heads, 1]))
        return ops.gather_elements(scores, sources, 2)

    def add_outputs(self) -> None:
        """Return the new keys and summaries of the anchors that were scored, all of them and in order."""
        add_output(self._model, _joined(self._new_keys, 2), "new_keys")
        add_output(self._model, _joined(self._new_summaries, 1), "new_summary")

    def _summarise(self, layer: PagedLayer) -> ov.Node:
        heads, size = layer.num_kv_heads, layer.key_head_size
        keys = _rows(layer, KEY)
        # Indices of two axes: with one axis the GPU plugin reads them back, to see whether it can skip this.
        self._new_keys.append(ops.gather(keys, self._held_rows, i64(0)))
        both = ops.concat([self._held[layer.index], keys], 0)
        split = i64([0, self._block_size, heads, size])
        tokens = ops.reshape(ops.gather(both, self._written, i64(0)), split, True)
        weights = ops.unsqueeze(self._weights, i64([2, 3]))
        new = ops.reduce_sum(ops.multiply(tokens, weights), i64([1]))
        self._new_summaries.append(ops.reshape(new, i64([0, -1]), True))
        return new

    def _query(self, layer: PagedLayer) -> ov.Node:
        """The mean of each KV head's query heads, `[sequences, kv_heads, 1, values]`."""
        heads, size = layer.num_kv_heads, layer.key_head_size
        rows = ops.gather(_rows(layer, QUERY), self._queries, i64(0))
        rows = ops.reshape(rows, i64([0, 0, heads, -1, size]), True)
        return ops.transpose(ops.reduce_mean(rows, i64([3])), i64([0, 2, 1, 3]))


def _rows(layer: PagedLayer, position: int) -> ov.Output:
    """An input of the stock node, `[rows, values]`, as f32."""
    source = layer.node.input(position).get_source_output()
    return source if source.get_element_type() == ov.Type.f32 else ops.convert(source, "f32").output(0)


def _split(node: ov.Node, axis: int, lengths: list[int]) -> list[ov.Output]:
    """Parts along an axis; one part is the whole."""
    if len(lengths) == 1:
        return [node.output(0)]
    return list(ops.variadic_split(node, i64(axis), i64(lengths)).outputs())


def _joined(nodes: list[ov.Node], axis: int) -> ov.Node:
    return nodes[0] if len(nodes) == 1 else ops.concat(nodes, axis)
