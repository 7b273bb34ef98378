"""Which cache blocks each KV head reads: the reference of the native operation (see README.md)."""

from ovspec_ops.block_select.reference import MOST_VERIFIED_ROWS, block_select

__all__ = ["MOST_VERIFIED_ROWS", "block_select"]
