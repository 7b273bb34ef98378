"""How far the rows that linear layers and gated MLPs take are rounded."""

from __future__ import annotations

from typing import Literal

import openvino as ov

from ovspec_ops.linear.layout import NUMBERS
from ovspec_transforms.ffn.ffn_layers import GATED_MLP
from ovspec_transforms.graph import nodes_of_type
from ovspec_transforms.linear.native_linear import LINEAR
from ovspec_transforms.report import TransformReport

RowBits = Literal[8, 16, 32]


def round_rows(model: ov.Model, bits: RowBits) -> TransformReport:
    """Say how far rows may be rounded in every GatedMLP, and every Linear with compressed weights.

    Args:
        model: a model after `sparse_ffn` and `native_linear`; its operations are changed in place.
        bits: 16, or 8 with a scale for every 32 values of a row, which is what OpenVINO's own products take
            by default ("dynamic quantization"). With AMX, without integer dot products and for floating-point
            weights rows stay as exact as with 16. 32 does not round in Linear, and is 16 in GatedMLP.

    Raises:
        ValueError: another number of bits.
    """
    if bits not in (8, 16, 32):
        raise ValueError(f"row bits {bits}: expected 8, 16 or 32")
    changed = []
    for node in (node for kind in (LINEAR, GATED_MLP) for node in nodes_of_type(model, kind)):
        attributes = node.get_attributes()
        if attributes.get("format") in NUMBERS:
            continue
        wanted = min(bits, 16) if node.get_type_name() == GATED_MLP else bits
        if attributes["row_bits"] != wanted:
            node.set_attribute("row_bits", wanted)
            changed.append(node.get_friendly_name())
    return TransformReport("RoundRows", tuple(changed))
