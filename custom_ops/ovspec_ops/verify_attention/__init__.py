"""Attention of draft rows over a paged cache: the reference of the native operation (see README.md)."""

from ovspec_ops.verify_attention.reference import verify_attention
from ovspec_ops.verify_attention.tables import (
    PAST_LEN,
    TABLE,
    TABLE_END,
    one_chain,
    pack_tables,
    tables_length,
)

__all__ = [
    "PAST_LEN",
    "TABLE",
    "TABLE_END",
    "one_chain",
    "pack_tables",
    "tables_length",
    "verify_attention",
]
