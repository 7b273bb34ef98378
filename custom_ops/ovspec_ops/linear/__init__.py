"""Linear: see README.md."""

from ovspec_ops.linear.layout import (
    MOST_INPUTS,
    MOST_OUTPUTS,
    NUMBERS,
    PANEL,
    pack_linear,
    pack_numbers,
    pack_stored,
    packed_shape,
)
from ovspec_ops.linear.reference import linear

__all__ = [
    "MOST_INPUTS",
    "MOST_OUTPUTS",
    "NUMBERS",
    "PANEL",
    "linear",
    "pack_linear",
    "pack_numbers",
    "pack_stored",
    "packed_shape",
]
