"""Gated MLP of one layer that reads a part of its channels: the reference and the layouts of its weights."""

from ovspec_ops.gated_mlp.layout import (
    f16_bytes,
    pack_columns_u4,
    pack_columns_u8,
    pack_rows_u4,
)
from ovspec_ops.gated_mlp.reference import dequantise, gated_mlp

__all__ = [
    "dequantise",
    "f16_bytes",
    "gated_mlp",
    "pack_columns_u4",
    "pack_columns_u8",
    "pack_rows_u4",
]
