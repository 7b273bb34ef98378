"""Attention of draft rows over a paged cache: the reference of the native operation (see README.md)."""

from ovspec_ops.verify_attention.reference import verify_attention
from ovspec_ops.verify_attention.tables import pack_chain, pack_tables

__all__ = ["pack_chain", "pack_tables", "verify_attention"]
