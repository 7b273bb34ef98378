"""Block summaries and scores with stock operations."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.paged_cache import KEY, QUERY, PagedLayer
from ovspec_transforms.attention.selection import Selection
from ovspec_transforms.graph import add_output, add_parameter, f32, i64


class StockScores:
    """Scores every block of every sequence at a layer, and summarises the blocks that the pass writes.

    Inputs and outputs are those of `select_blocks_stock`.
    """

    def __init__(self, model: ov.Model, selection: Selection, block_size: int) -> None:
        self._model = model
        self._selection = selection
        self._block_size = block_size
        self._tables = add_parameter(model, "select_tables", [-1, -1], ov.Type.i32)
        self._queries = add_parameter(model, "select_queries", [-1, -1], ov.Type.i32)
        self._sources = add_parameter(model, "select_sources", [-1, -1], ov.Type.i32)
        self._written = add_parameter(model, "summary_tokens", [-1, block_size], ov.Type.i32)
        self._held_rows = add_parameter(model, "held_rows", [-1], ov.Type.i32)
        self._weights = (
            add_parameter(model, "summary_weights", [-1, block_size], ov.Type.f32)
            if selection.summary == "mean"
            else None
        )

    def of(self, layer: PagedLayer) -> ov.Node:
        """Scores f32 `[sequences, kv_heads, blocks]`."""
        shape = [-1, layer.num_kv_heads, self._selection.summary_size(layer.key_head_size)]
        summary = add_parameter(self._model, f"key_summary.{layer.index}", shape, ov.Type.f32)
        new = self._summarise(layer)
        query = self._query(layer)
        # [sequences, kv_heads, queries, blocks]
        old = ops.transpose(ops.gather(summary, self._tables, i64(0)), i64([0, 2, 1, 3]))
        of_old = ops.matmul(query, old, False, True)
        of_new = ops.matmul(query, ops.transpose(new, i64([1, 0, 2])), False, True)
        scores = ops.reduce_max(ops.concat([of_old, of_new], 3), i64([2]))
        # For a block that this pass writes, the input holds an old summary, or that of another sequence.
        # No transpose around a Gather: with one KV head the CPU plugin would silently skip the operation.
        sources = ops.tile(ops.unsqueeze(self._sources, i64([1])), i64([1, layer.num_kv_heads, 1]))
        return ops.gather_elements(scores, sources, 2)

    def _summarise(self, layer: PagedLayer) -> ov.Node:
        heads, size = layer.num_kv_heads, layer.key_head_size
        held = add_parameter(self._model, f"held_keys.{layer.index}", [-1, heads * size], ov.Type.f32)
        keys = _rows(layer, KEY)
        add_output(self._model, ops.gather(keys, self._held_rows, i64(0)), f"new_keys.{layer.index}")
        both = ops.concat([held, keys], 0)
        split = i64([0, self._block_size, heads, size])
        tokens = ops.reshape(ops.gather(both, self._written, i64(0)), split, True)
        if self._weights is not None:
            weights = ops.unsqueeze(self._weights, i64([2, 3]))
            new = ops.reduce_sum(ops.multiply(tokens, weights), i64([1]))
        else:
            new = ops.concat([ops.reduce_min(tokens, i64([1])), ops.reduce_max(tokens, i64([1]))], 2)
        add_output(self._model, new, f"new_summary.{layer.index}")
        return new

    def _query(self, layer: PagedLayer) -> ov.Node:
        """What to multiply summaries with, `[sequences, kv_heads, queries, values]`.

        For mean keys, the mean of the KV head's query heads. For ranges, the means of their negative and of
        their positive parts: the sum of max(q * min, q * max) takes the minimum where q is negative.
        """
        heads, size = layer.num_kv_heads, layer.key_head_size
        rows = ops.gather(_rows(layer, QUERY), self._queries, i64(0))
        rows = ops.reshape(rows, i64([0, 0, heads, -1, size]), True)
        if self._selection.summary == "mean":
            mean = ops.reduce_mean(rows, i64([3]))
        else:
            parts = [ops.minimum(rows, f32(0)), ops.maximum(rows, f32(0))]
            mean = ops.concat([ops.reduce_mean(part, i64([3])) for part in parts], 3)
        return ops.transpose(mean, i64([0, 2, 1, 3]))


def _rows(layer: PagedLayer, position: int) -> ov.Output:
    """An input of the stock node, `[rows, values]`, as f32."""
    source = layer.node.input(position).get_source_output()
    return source if source.get_element_type() == ov.Type.f32 else ops.convert(source, "f32").output(0)
