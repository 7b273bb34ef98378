"""Linear: see README.md."""

from ovspec_ops.linear.layout import MOST_INPUTS, PANEL, pack_linear
from ovspec_ops.linear.reference import linear

__all__ = ["MOST_INPUTS", "PANEL", "linear", "pack_linear"]
