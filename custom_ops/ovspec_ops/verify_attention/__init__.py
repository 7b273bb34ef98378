"""Attention of draft rows over a paged cache: the reference of the native operation (see README.md)."""

from ovspec_ops.verify_attention.reference import verify_attention

__all__ = ["verify_attention"]
