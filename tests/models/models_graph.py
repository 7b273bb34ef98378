"""Read the constants and operations of an IR file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import openvino as ov


def operations(xml: Path) -> Counter[str]:
    return Counter(op.get_type_name() for op in ov.Core().read_model(xml).get_ops())


def constants(xml: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return name -> element type, shape and the raw bytes of every constant."""
    found = {}
    for op in ov.Core().read_model(xml).get_ops():
        if op.get_type_name() == "Constant":
            shape = tuple(op.get_output_shape(0))
            found[op.get_friendly_name()] = (op.get_element_type().get_type_name(), shape, op.data.tobytes())
    return found


def weights_by_type(xml: Path) -> Counter[str]:
    """Count the weight matrices by element type: at least 2 dimensions and 4,096 values, and no scales."""
    counts: Counter[str] = Counter()
    for kind, shape, _ in constants(xml).values():
        size = 1
        for dim in shape:
            size *= dim
        if len(shape) >= 2 and shape[-1] > 1 and size >= 4096:
            counts[kind] += 1
    return counts
