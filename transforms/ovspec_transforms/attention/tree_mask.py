"""Draft trees in stock PagedAttention: its tree mask becomes inputs of the graph."""

from __future__ import annotations

import openvino as ov

from ovspec_transforms.attention.paged_cache import paged_layers
from ovspec_transforms.graph import add_parameter
from ovspec_transforms.report import TransformReport

# Inputs of PagedAttentionExtension, and of the graph.
_QQ_BIAS, _QQ_BIAS_BEGINS = 26, 27
QQ_BIAS, QQ_BIAS_BEGINS = "qq_bias", "qq_bias_begins"


def tree_mask(model: ov.Model) -> TransformReport:
    """Make the tree mask of every layer an input, unless a layer counts distances.

    Adds `qq_bias` u8 `[sum of rows * rows]`, 1 where a row of a sequence sees another, and `qq_bias_begins`
    i32 `[sequences + 1]`; a sequence without elements is a chain. Windows and ALiBi slopes count the slots
    between two tokens, which in a tree are not their distance: such a model is left as it is.
    """
    layers = paged_layers(model)
    for layer in layers:
        if layer.sliding_window or layer.has_alibi:
            return TransformReport("tree_mask", (), (f"{layer.name}: a window or ALiBi counts slots",))
    mask = add_parameter(model, QQ_BIAS, [-1], ov.Type.u8).output(0)
    begins = add_parameter(model, QQ_BIAS_BEGINS, [-1], ov.Type.i32).output(0)
    for layer in layers:
        layer.node.input(_QQ_BIAS).replace_source_output(mask)
        layer.node.input(_QQ_BIAS_BEGINS).replace_source_output(begins)
    return TransformReport("tree_mask", tuple(layer.name for layer in layers))
