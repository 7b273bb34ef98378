"""Row routing: our operation attends to what stock PagedAttention, or `write_caches`, writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec_ops.common.cache_layout import why_not_taken
from ovspec_transforms.attention.paged_cache import (
    KEY_CACHE,
    QUERY,
    SINKS,
    SUBSEQUENCE_BEGINS,
    VALUE_CACHE,
    PagedLayer,
    paged_layers,
)
from ovspec_transforms.graph import (
    PAGED_ATTENTION,
    add_parameter,
    find_parameter,
    rewrite_nodes,
)
from ovspec_transforms.report import TransformReport

VERIFY_ATTENTION = "VerifyAttention"
WRITTEN_BEGINS = "written_begins"
VERIFY_TABLES = "verify_tables"
VERIFY_PAST_LENS = "verify_past_lens"
_SELECTED_BLOCKS, _SINKS = 5, 7  # inputs of VerifyAttention


@dataclass(frozen=True, slots=True)
class RowSight:
    """What the rows of a sequence see in a layer.

    Attributes:
        past_window: so many of the tokens before the first row; 0: all.
        causal: whether a row sees those rows that it follows, or else all of the sequence.
    """

    past_window: int = 0
    causal: bool = True


def _sinks(layer: PagedLayer) -> ov.Output | None:
    """The layer's sinks as f32 `[heads]`, folded when compiled; `None` where it has none."""
    source = layer.node.input(SINKS).get_source_output()
    shape = source.get_partial_shape()
    if shape.is_static and 0 in shape.to_shape():
        return None
    flat = ops.reshape(source, ops.constant([-1], ov.Type.i64), special_zero=False)
    return ops.convert(flat, ov.Type.f32).output(0)


def select(node: ov.Node, blocks: ov.Output, counts: ov.Output) -> None:
    """Let a `VerifyAttention` read the blocks of a list."""
    inputs = [port.get_source_output() for port in node.inputs()]
    sinks = inputs[_SINKS:] or [ops.constant(np.zeros(0, np.float32)).output(0)]
    node.set_arguments([*inputs[:_SELECTED_BLOCKS], blocks, counts, *sinks])


def route_rows(model: ov.Model, sights: Sequence[RowSight] = ()) -> TransformReport:
    """Add `VerifyAttention` behind every `PagedAttentionExtension`, over the same caches.

    All rows pass the stock node, which writes K/V in its own precision and layout, until `write_caches` takes
    its place. The host hands it the blocks that it writes and no others, so that it reads almost nothing; its
    output is replaced by ours.
    That output is an input of ours, which orders the write before the read. So one arithmetic, in which a
    row's result does not depend on other rows, computes prompts and verification alike.

    Adds the inputs `written_begins` i32 `[pieces + 1]` (first row of each piece that the stock node takes as
    a sequence) and `verify_tables` i32 `[N]`, as `ovspec_ops.verify_attention.pack_tables` makes it.

    Args:
        sights: of the layers, where they are not those of a decoder.

    Raises:
        ValueError: a layer has what the operation does not support, or the model is not paged.
    """
    layers = len(paged_layers(model))
    find_parameter(model, "subsequence_begins")
    begins, tables = (
        add_parameter(model, name, [-1], ov.Type.i32) for name in (WRITTEN_BEGINS, VERIFY_TABLES)
    )

    def rewrite(node: ov.Node) -> bool:
        """Insert our operation between the stock node and its consumers."""
        output = node.output(0)
        consumers = list(output.get_target_inputs())
        if any(port.get_node().get_type_name() == VERIFY_ATTENTION for port in consumers):
            return False
        layer = PagedLayer.of(node)
        routed = _operation(layer, tables, sights[layer.index] if sights else RowSight())
        for port in consumers:
            port.replace_source_output(routed.output(0))
        node.input(SUBSEQUENCE_BEGINS).replace_source_output(begins.output(0))
        return True

    return rewrite_nodes(model, "RouteRows", PAGED_ATTENTION, rewrite).require(layers)


def _operation(layer: PagedLayer, tables: ov.Node, sight: RowSight) -> ov.Node:
    """The operation that attends to the rows of a layer."""
    if layer.has_alibi:
        raise ValueError(
            f"layer {layer.name} has ALiBi slopes, which VerifyAttention does not support; "
            "use attention='stock' to run this model"
        )
    if why := why_not_taken(layer.num_kv_heads, layer.key_head_size, layer.value_head_size):
        raise ValueError(f"layer {layer.name} has {why}; use attention='stock' to run this model")
    node = layer.node
    query, keys, values = (node.input(i).get_source_output() for i in (QUERY, KEY_CACHE, VALUE_CACHE))
    inputs = [query, keys, values, node.output(0), tables.output(0)]
    # Empty inputs would cost time too.
    if (sinks := _sinks(layer)) is not None:
        all_blocks = ops.constant(np.zeros((layer.num_kv_heads, 0), np.int32)).output(0)
        inputs += [all_blocks, all_blocks, sinks]
    attributes = {
        "kv_heads": layer.num_kv_heads,
        "k_size": layer.key_head_size,
        "v_size": layer.value_head_size,
        "scale": layer.scale,
        "sliding_window": layer.sliding_window,
        "past_window": sight.past_window,
        "causal": sight.causal,
    }
    routed = ovspec_ops.create(VERIFY_ATTENTION, inputs, attributes)
    routed.set_friendly_name(f"{layer.name}/{VERIFY_ATTENTION}")
    return routed
