"""The paper's rule with stock operations: anchors hand stock PagedAttention shortened block tables."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.anchors import anchor_of, check_anchor_layers
from ovspec_transforms.attention.paged_cache import (
    BLOCK_INDICES,
    BLOCK_INDICES_BEGINS,
    MAX_CONTEXT_LEN,
    PAST_LENS,
    PagedLayer,
    paged_layers,
)
from ovspec_transforms.attention.select_blocks import SELECTED_COUNTS, VERIFY_COVERAGE
from ovspec_transforms.attention.stock_scores import StockScores
from ovspec_transforms.graph import add_output, add_parameter, f32, find_parameter, i32, i64
from ovspec_transforms.report import TransformReport

# Scores of blocks that are no candidates, and of candidates without a score, which rank just above them.
_NO_CANDIDATE, _NO_SCORE = -3e38, -2e38


class _SelectBlocksStock:
    """Gives every `PagedAttentionExtension` its anchor's block table, without the blocks that are dropped."""

    def __init__(
        self,
        model: ov.Model,
        layers: Sequence[PagedLayer],
        anchors: tuple[int, ...],
        block_size: int,
        covers: bool,
    ) -> None:
        self._model, self._layers, self._anchors = model, layers, anchors
        self._block_size = block_size
        self._counts: dict[int, ov.Node] = {}
        self._scores = StockScores(model, block_size, [layer for layer in layers if layer.index in anchors])
        self._tables = self._input("select_tables", 2)
        self._ranks = self._input("select_ranks", 1)
        if covers:
            self._past_lens = find_parameter(model, "past_lens")
            self._begins = find_parameter(model, "subsequence_begins")
            self._whole = self._input("select_whole", 1)
            self._tokens = self._input("select_tokens", 2, ov.Type.f32)
            self._coverage = self._input(VERIFY_COVERAGE, 1, ov.Type.f32)
        self._covers = covers

    def _input(self, name: str, rank: int, dtype: ov.Type = ov.Type.i32) -> ov.Node:
        return add_parameter(self._model, name, [-1] * rank, dtype)

    def run(self) -> TransformReport:
        """Rewire all layers, and add the outputs that `select_blocks_stock` names."""
        replaced: dict[int, dict[int, ov.Node]] = {}
        for layer in self._layers:  # anchors come before the layers that reuse their list
            anchor = anchor_of(layer.index, self._anchors)
            if anchor == layer.index:
                replaced[anchor] = self._shorten(layer)
            for position, source in replaced[anchor].items():
                layer.node.input(position).replace_source_output(source.output(0))
        self._scores.add_outputs()
        if self._covers:
            counts = [self._counts[anchor_of(layer.index, self._anchors)] for layer in self._layers]
            stacked = ops.concat([ops.unsqueeze(count, i64([0, 1])) for count in counts], 0)
            add_output(self._model, stacked, SELECTED_COUNTS)
        self._model.validate_nodes_and_infer_types()
        return TransformReport("SelectBlocksStock", tuple(layer.name for layer in self._layers))

    def _shorten(self, layer: PagedLayer) -> dict[int, ov.Node]:
        always = self._input("select_always", 2)
        scores = self._scores.of(layer)
        order = self._ranked(always, scores)
        # Beside the ranked blocks of a sequence all of its blocks: those that stay are taken from there.
        ranked = ops.gather_elements(self._tables, order, 1)
        blocks = ops.reshape(ops.concat([ranked, self._tables], 1), i64([-1]), False)
        if not self._covers:
            places = self._input("select_places", 2)
            return {
                BLOCK_INDICES: ops.reshape(ops.gather(blocks, places, i64(0)), i64([-1]), False),
                BLOCK_INDICES_BEGINS: self._input("select_begins", 1),
                PAST_LENS: self._input("select_past_lens", 1),
                MAX_CONTEXT_LEN: self._input("select_max_context_len", 0),
            }
        limits = ops.unsqueeze(self._input("select_limits", 1), i64(1))
        taken = ops.less(ops.unsqueeze(self._ranks, i64(0)), limits)
        taken = ops.convert(ops.logical_and(taken, self._uncovered(layer, always, scores, order)), "i32")
        return self._counted(layer, blocks, ops.concat([taken, ops.maximum(always, i32(0))], 1))

    def _ranked(self, always: ov.Node, scores: ov.Node) -> ov.Output:
        """The blocks that score most, i32 `[sequences, ranked]`; `scores` is `[sequences, kv_heads, blocks]`.

        How many is the length of an input: the GPU plugin reads a number back from the device, a shape not.
        """
        summed = ops.reduce_sum(scores, i64([1]))
        known = ops.select(ops.equal(summed, summed), summed, f32(_NO_SCORE))
        candidates = ops.select(ops.equal(always, i32(0)), known, f32(_NO_CANDIDATE))
        count = ops.squeeze(ops.shape_of(self._ranks, "i64"), i64([0]))
        top = ops.topk(candidates, count, 1, "max", "value", index_element_type="i32", stable=True)
        return top.output(1)

    def _counted(self, layer: PagedLayer, blocks: ov.Node, keep: ov.Node) -> dict[int, ov.Node]:
        """Inputs of a layer whose numbers of blocks only the graph knows, because a coverage limits them."""
        place = ops.squeeze(ops.non_zero(ops.reshape(keep, i64([-1]), False), "i64"), i64([0]))
        counts = self._counts[layer.index] = ops.reduce_sum(keep, i64([1]))
        past = ops.subtract(
            self._past_lens, ops.multiply(ops.subtract(self._whole, counts), i32(self._block_size))
        )
        ends = ops.slice(self._begins, i64([1]), i64([2**31 - 1]), i64([1]))
        rows = ops.subtract(ends, ops.slice(self._begins, i64([0]), i64([-1]), i64([1])))
        return {
            BLOCK_INDICES: ops.gather(blocks, place, i64(0)),
            BLOCK_INDICES_BEGINS: ops.concat([i32([0]), ops.cum_sum(counts, i64(0))], 0),
            PAST_LENS: past,
            MAX_CONTEXT_LEN: ops.reduce_max(ops.add(past, rows), i64([0])),
        }

    def _uncovered(self, layer: PagedLayer, always: ov.Node, scores: ov.Node, order: ov.Output) -> ov.Node:
        """Whether the blocks before each ranked one hold less than the coverage, `[sequences, ranked]`."""
        known = ops.select(ops.equal(scores, scores), scores, f32(_NO_SCORE))
        tokens = ops.unsqueeze(self._tokens, i64(1))
        known = ops.select(ops.greater(tokens, f32(0)), known, f32(_NO_SCORE))
        highest = ops.reduce_max(known, i64([2]), True)
        weights = ops.multiply(ops.exp(ops.multiply(ops.subtract(known, highest), f32(layer.scale))), tokens)
        # All KV heads share one list, so a block's share is the mean over KV heads.
        shares = ops.reduce_mean(ops.divide(weights, ops.reduce_sum(weights, i64([2]), True)), i64([1]))
        stay = ops.convert(ops.maximum(always, i32(0)), "f32")
        held = ops.reduce_sum(ops.multiply(shares, stay), i64([1]), True)
        before = ops.add(ops.cum_sum(ops.gather_elements(shares, order, 1), i64(1), exclusive=True), held)
        coverage = ops.unsqueeze(self._coverage, i64(1))
        return ops.logical_or(ops.less(before, coverage), ops.greater_equal(coverage, f32(1)))


def stock_selecting_layers(model: ov.Model) -> list[PagedLayer]:
    """The layers of a paged model that stock attention can read partly.

    A layer with a sliding window or ALiBi slopes counts positions by the places of the cache, and stays
    dense.

    Raises:
        ValueError: there are none.
    """
    layers = [layer for layer in paged_layers(model) if not (layer.sliding_window or layer.has_alibi)]
    if not layers:
        raise ValueError(
            "every layer of this model has a sliding window or ALiBi slopes and stays dense; "
            "use verify='dense'"
        )
    return layers


def stock_anchors(model: ov.Model, anchor_layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """The anchor of every layer that stock attention can read partly; arguments as `select_blocks_stock`."""
    indices = [layer.index for layer in stock_selecting_layers(model)]
    anchors = check_anchor_layers(anchor_layers, indices)
    return tuple(anchor_of(index, anchors) for index in indices)


def select_blocks_stock(
    model: ov.Model,
    anchor_layers: Sequence[int] | None = None,
    block_size: int = 32,
    covers: bool = True,
) -> TransformReport:
    """Make the stock attention of a paged model sparse, with stock operations.

    Whole blocks are left out of the tables of the layers, with `past_lens`, `block_indices`,
    `block_indices_begins` and `max_context_len` of their own per anchor. Keys are stored after RoPE, so
    positions stay right. Scores are summed over KV heads: stock attention knows one list per layer. A list
    begins with the blocks that were chosen, the largest score first, and ends with those that always stay.

    The host computes what does not depend on the model, and keeps the summaries. Every pass takes, beside
    those of a paged model, these inputs; sequences are padded to the longest table, blocks are logical:

    * `select_tables` i32 `[sequences, blocks]`: physical blocks, padded with 0;
    * `select_always` i32 `[sequences, blocks]`: 1 keeps a block, 0 lets it score, -1 pads;
    * `select_queries` i32 `[sequences, 1]`: the row to score with;
    * `select_ranks` i32 `[ranked]`: 0, 1, ..; so many blocks are ranked in every sequence, at most all;
    * `select_sources` i32 `[sequences, blocks]`: the block's own number or, for those that the pass writes,
      its place in `summary_tokens` plus the number of blocks;
    * `summary_tokens` i32 `[written, block_size]`: tokens of every written block as rows of `held_keys` and
      this pass' keys together, padded with one of them, and `summary_weights` f32, their shares in a mean;
    * `held_rows` i32 `[held, 1]`: rows whose keys `new_keys` returns;
    * `key_summary.all` f32 `[cache blocks, values]` and `held_keys` f32 `[tokens, values]`: of all anchors,
      side by side.

    Where a budget alone limits the lists, their lengths are known before the pass, and the device waits for
    none of them: `select_places` i32 `[1, entries]`, places of all lists one behind the other in a row of
    ranked and then all blocks for every sequence; `select_begins`, `select_past_lens` i32, and
    `select_max_context_len`, what `PagedAttentionExtension` takes beside these lists.

    With `covers` the graph computes these: from `select_limits` i32 `[sequences]`, blocks to keep beside
    those that always stay; `select_whole` i32 `[sequences]`, blocks of the whole table; `select_tokens` f32
    `[sequences, blocks]`, tokens of a block before the pass, padded with 0; `verify_coverage` f32
    `[sequences]`.

    Outputs: `new_summary` f32 `[written, values]` and `new_keys` f32 `[held, 1, values]`, of all anchors side
    by side; with `covers` `selected_counts` i32 `[sparse layers, 1, sequences]`, all blocks where a
    sequence does not select.

    Args:
        model: a model after `to_paged`.
        anchor_layers: layers that select for themselves; `None` takes `default_anchor_layers`.
        block_size: tokens per cache block on the device.
        covers: whether a coverage may limit the lists.

    Raises:
        ValueError: bad anchors, or a model all of whose layers stay dense.
    """
    layers = stock_selecting_layers(model)
    anchors = tuple(dict.fromkeys(stock_anchors(model, anchor_layers)))
    return _SelectBlocksStock(model, layers, anchors, block_size, covers).run()
