"""Inspection of the attention masks of a stateful decoder."""

from __future__ import annotations

import math

import openvino as ov

from ovspec_transforms.graph import ancestors, nodes_of_type, source_node

_MASK = 3
# The search for the mask stops at these operations: their inputs are sizes or other layers.
_ENDS = ("Parameter", "ReadValue", "ShapeOf")


def biased_attention(model: ov.Model) -> str | None:
    """Name of the first attention node whose mask has a table of real numbers, as with ALiBi.

    Masks that only hide positions, causal or with a window, consist of comparisons and single numbers.
    """
    for node in nodes_of_type(model, "ScaledDotProductAttention"):
        if len(node.inputs()) > _MASK and _has_table(source_node(node, _MASK)):
            return str(node.get_friendly_name())
    return None


def _has_table(mask: ov.Node) -> bool:
    """Whether an input of the mask's computation is a constant of several real numbers."""
    constants = (node for node in ancestors(mask, _ENDS) if node.get_type_name() == "Constant")
    return any(
        node.get_element_type().is_real() and math.prod(node.get_output_shape(0)) > 1 for node in constants
    )
