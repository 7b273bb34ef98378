"""Angles of rotary embeddings as products of elements."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import let_read, rewrite_nodes
from ovspec_transforms.report import TransformReport


def rope_angles(model: ov.Model) -> TransformReport:
    """Replace matrix products over one element by products of elements, which have the same bits.

    Exported models multiply frequencies `[1, size, 1]` with positions `[rows, 1, 1]` by a MatMul. The CPU
    plugin makes a kernel of 300 KB for every number of rows that it sees, and keeps a thousand. Graphs
    for other devices keep the MatMul: what the product's precision would be in f16 was not measured there.
    """

    def rewrite(node: ov.Node) -> bool:
        given = node.get_attributes()
        left, right = node.input(0).get_source_output(), node.input(1).get_source_output()
        if given["transpose_a"] or given["transpose_b"] or not _is_one(left, -1) or not _is_one(right, -2):
            return False
        product = ops.multiply(left, right)
        product.set_friendly_name(node.get_friendly_name())
        let_read(node.output(0), product.output(0))
        return True

    return rewrite_nodes(model, "RopeAngles", "MatMul", rewrite)


def _is_one(output: ov.Output, axis: int) -> bool:
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) < 2:
        return False
    return bool(shape[axis] == ov.Dimension(1))
