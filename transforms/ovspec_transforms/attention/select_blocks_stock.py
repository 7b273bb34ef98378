"""Block selection with stock operations only: anchors hand stock PagedAttention shortened block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.anchors import anchor_of, check_anchor_layers, default_anchor_layers
from ovspec_transforms.attention.paged_cache import (
    ALIBI_SLOPES,
    BLOCK_INDICES,
    BLOCK_INDICES_BEGINS,
    MAX_CONTEXT_LEN,
    PAST_LENS,
    SCALE,
    PagedLayer,
    constant_input,
    paged_layers,
)
from ovspec_transforms.attention.select_blocks import SELECTED_COUNTS, VERIFY_COVERAGE, VERIFY_REFRESH
from ovspec_transforms.attention.selection import Selection
from ovspec_transforms.attention.stock_scores import StockScores
from ovspec_transforms.graph import (
    PAGED_ATTENTION,
    NodePass,
    add_output,
    add_parameter,
    f32,
    find_parameter,
    i32,
    i64,
    run_pass,
)
from ovspec_transforms.report import PassReport

# Scores of blocks that are no candidates, and of candidates without a score, which rank just above them.
_NO_CANDIDATE, _NO_SCORE = -3e38, -2e38


@dataclass(frozen=True, slots=True)
class ShortenedTable:
    """Nodes that replace inputs of an anchor's layers, and its number of blocks, i32 `[sequences]`."""

    inputs: dict[int, ov.Node]
    counts: ov.Node


class SelectBlocksStock(NodePass):
    """Give every `PagedAttentionExtension` its anchor's block table, without the blocks that are dropped."""

    def __init__(
        self,
        model: ov.Model,
        layers: Sequence[PagedLayer],
        anchors: tuple[int, ...],
        selection: Selection,
        block_size: int,
    ) -> None:
        super().__init__(PAGED_ATTENTION)
        self._model = model
        self._anchors = anchors
        self._selection = selection
        self._block_size = block_size
        self._layers = {layer.name: layer for layer in layers}
        self._chosen: dict[int, ShortenedTable] = {}
        self._scores = StockScores(model, selection, block_size)
        self._past_lens = find_parameter(model, "past_lens")
        self._begins = find_parameter(model, "subsequence_begins")
        self._tables = self._input("select_tables", 2)
        self._always = self._input("select_always", 2)
        self._limits = self._input("select_limits", 1)
        self._most = self._input("select_most", 0)
        self._tokens = self._input("select_tokens", 2, ov.Type.f32)
        self._coverage = self._input(VERIFY_COVERAGE, 1, ov.Type.f32)
        self._refresh = self._input(VERIFY_REFRESH, 1) if selection.remembers else None

    def _input(self, name: str, rank: int, dtype: ov.Type = ov.Type.i32) -> ov.Node:
        return add_parameter(self._model, name, [-1] * rank, dtype)

    def rewrite(self, node: ov.Node) -> bool:
        """Rewire one layer; anchors come before the layers that reuse their list."""
        layer = self._layers.get(node.get_friendly_name())
        if layer is None:
            return False
        anchor = anchor_of(layer.index, self._anchors)
        if anchor == layer.index and anchor not in self._chosen:
            self._chosen[anchor] = self._shorten(layer)
        changed = False
        for position, source in self._chosen[anchor].inputs.items():
            if node.input(position).get_source_output().get_node() != source:
                node.input(position).replace_source_output(source.output(0))
                changed = True
        return changed

    def _shorten(self, layer: PagedLayer) -> ShortenedTable:
        scores = self._scores.of(layer)
        keep = self._keep(layer, scores)
        place = ops.squeeze(ops.non_zero(ops.reshape(keep, i64([-1]), False), "i64"), i64([0]))
        blocks = ops.gather(ops.reshape(self._tables, i64([-1]), False), place, i64(0))
        counts = ops.reduce_sum(keep, i64([1]))
        total = ops.reduce_sum(ops.convert(ops.greater_equal(self._always, i32(0)), "i32"), i64([1]))
        dropped = ops.multiply(ops.subtract(total, counts), i32(self._block_size))
        past = ops.subtract(self._past_lens, dropped)
        begins = ops.concat([i32([0]), ops.cum_sum(counts, i64(0))], 0)
        ends = ops.slice(self._begins, i64([1]), i64([2**31 - 1]), i64([1]))
        rows = ops.subtract(ends, ops.slice(self._begins, i64([0]), i64([-1]), i64([1])))
        longest = ops.reduce_max(ops.add(past, rows), i64([0]))
        replaced = {
            PAST_LENS: past,
            BLOCK_INDICES: blocks,
            BLOCK_INDICES_BEGINS: begins,
            MAX_CONTEXT_LEN: longest,
        }
        return ShortenedTable(replaced, counts)

    def _keep(self, layer: PagedLayer, scores: ov.Node) -> ov.Node:
        """1 where a block stays, i32 `[sequences, blocks]`; `scores` is `[sequences, kv_heads, blocks]`."""
        summed = ops.reduce_sum(scores, i64([1]))
        known = ops.select(ops.equal(summed, summed), summed, f32(_NO_SCORE))
        ranked = ops.select(ops.equal(self._always, i32(0)), known, f32(_NO_CANDIDATE))
        top = ops.topk(ranked, self._most, 1, "max", "value", index_element_type="i32", stable=True)
        order = top.output(1)
        number = ops.range(i32(0), self._most, i32(1), "i32")
        taken = ops.less(ops.unsqueeze(number, i64(0)), ops.unsqueeze(self._limits, i64(1)))
        taken = ops.convert(ops.logical_and(taken, self._uncovered(layer, scores, order)), "i32")
        nothing = ops.multiply(self._always, i32(0))
        chosen = ops.scatter_elements_update(nothing, order, taken, i64(1))
        keep = ops.maximum(chosen, ops.maximum(self._always, i32(0)))
        if self._refresh is not None:
            keep = ops.maximum(keep, self._remembered(layer))
            add_output(self._model, keep, f"chosen_blocks.{layer.index}")
        return keep

    def _uncovered(self, layer: PagedLayer, scores: ov.Node, order: ov.Output) -> ov.Node:
        """Whether the blocks before each ranked one hold less than the coverage, `[sequences, ranked]`."""
        scale = constant_input(layer.node, SCALE, "scale")
        factor = float(scale.reshape(-1)[0]) if scale.size else layer.key_head_size**-0.5
        known = ops.select(ops.equal(scores, scores), scores, f32(_NO_SCORE))
        tokens = ops.unsqueeze(self._tokens, i64(1))
        known = ops.select(ops.greater(tokens, f32(0)), known, f32(_NO_SCORE))
        highest = ops.reduce_max(known, i64([2]), True)
        weights = ops.multiply(ops.exp(ops.multiply(ops.subtract(known, highest), f32(factor))), tokens)
        # All KV heads share one list, so a block's share is the mean over KV heads.
        shares = ops.reduce_mean(ops.divide(weights, ops.reduce_sum(weights, i64([2]), True)), i64([1]))
        always = ops.convert(ops.maximum(self._always, i32(0)), "f32")
        held = ops.reduce_sum(ops.multiply(shares, always), i64([1]), True)
        before = ops.add(ops.cum_sum(ops.gather_elements(shares, order, 1), i64(1), exclusive=True), held)
        coverage = ops.unsqueeze(self._coverage, i64(1))
        return ops.logical_or(ops.less(before, coverage), ops.greater_equal(coverage, f32(1)))

    def _remembered(self, layer: PagedLayer) -> ov.Node:
        """The list of the last refresh, 0 everywhere in sequences that refresh now."""
        lists = add_parameter(self._model, f"kept_blocks.{layer.index}", [-1, -1], ov.Type.i32)
        reuses = ops.convert(ops.equal(self._refresh, i32(0)), "i32")
        return ops.multiply(lists, ops.unsqueeze(reuses, i64(1)))

    def counts(self) -> list[ov.Node]:
        """Per layer that is sparse, the number of blocks it reads, i32 `[sequences]`, in layer order."""
        layers = sorted(layer.index for layer in self._layers.values())
        return [self._chosen[anchor_of(layer, self._anchors)].counts for layer in layers]


def stock_selecting_layers(model: ov.Model) -> list[PagedLayer]:
    """The layers of a paged model that stock attention can read partly.

    A layer with a sliding window or ALiBi slopes counts positions by the places of the cache, and stays
    dense.

    Raises:
        ValueError: there are none.
    """
    layers = [
        layer
        for layer in paged_layers(model)
        if not layer.sliding_window and not constant_input(layer.node, ALIBI_SLOPES, "ALiBi slopes").size
    ]
    if not layers:
        raise ValueError(
            "every layer of this model has a sliding window or ALiBi slopes and stays dense; "
            "use verify='dense'"
        )
    return layers


def select_blocks_stock(
    model: ov.Model,
    anchor_layers: Sequence[int] | None = None,
    selection: Selection | None = None,
    block_size: int = 32,
) -> PassReport:
    """Make the stock attention of a paged model sparse, with stock operations.

    Whole blocks are left out of the tables of the layers, with `past_lens`, `block_indices`,
    `block_indices_begins` and `max_context_len` of their own per anchor. Keys are stored after RoPE, so
    positions stay right. Scores are summed over KV heads: stock attention knows one list per layer.

    The host computes what does not depend on the model, and keeps the summaries. Every pass takes, beside
    those of a paged model, these inputs; sequences are padded to the longest table, blocks are logical:

    * `select_tables` i32 `[sequences, blocks]`: physical blocks, padded with 0;
    * `select_always` i32 `[sequences, blocks]`: 1 keeps a block, 0 lets it score, -1 pads;
    * `select_queries` i32 `[sequences, queries]`: rows to score with, padded with one of them;
    * `select_limits` i32 `[sequences]`: blocks to keep beside those that are always kept, and `select_most`
      i32 scalar, the largest of them, at least 1;
    * `select_tokens` f32 `[sequences, blocks]`: tokens of a block after the pass, padded with 0;
    * `select_sources` i32 `[sequences, blocks]`: the block's own number or, for those that the pass writes,
      its place in `summary_tokens` plus the number of blocks;
    * `summary_tokens` i32 `[written, block_size]`: tokens of every written block as rows of `held_keys` and
      this pass' keys together, padded with one of them, and `summary_weights` f32, their shares in a mean;
    * `held_rows` i32 `[held]`: rows whose keys `new_keys` returns;
    * `verify_coverage` f32 `[sequences]`; where lists outlive their pass `verify_refresh` i32 `[sequences]`;
    * per anchor N `key_summary.N` f32 `[cache blocks, kv_heads, values]`, `held_keys.N` f32 `[tokens,
      kv_heads * size]` and, where lists outlive their pass, `kept_blocks.N` i32 `[sequences, blocks]`, the
      list of the last refresh, padded with 0.

    Outputs per anchor: `new_summary.N` f32 `[written, kv_heads, values]`, `new_keys.N` f32 `[held, kv_heads *
    size]` and, where lists outlive their pass, `chosen_blocks.N` i32 `[sequences, blocks]`; for all of them
    `selected_counts` i32 `[sparse layers, 1, sequences]`, all blocks where a sequence does not select.

    Args:
        model: a model after `to_paged`.
        anchor_layers: layers that select for themselves; `None` takes `default_anchor_layers`.
        selection: what they go by; `None` takes the defaults. The query's rows and the blocks at both ends
            are up to the host.
        block_size: tokens per cache block on the device.

    Raises:
        ValueError: bad anchors, or a model all of whose layers stay dense.
    """
    layers = stock_selecting_layers(model)
    indices = [layer.index for layer in layers]
    anchors = check_anchor_layers(
        default_anchor_layers(indices) if anchor_layers is None else anchor_layers, indices
    )
    node_pass = SelectBlocksStock(model, layers, anchors, selection or Selection(), block_size)
    report = run_pass(model, node_pass).require(len(layers))
    stacked = ops.concat([ops.unsqueeze(count, i64([0, 1])) for count in node_pass.counts()], 0)
    add_output(model, stacked, SELECTED_COUNTS)
    return report
