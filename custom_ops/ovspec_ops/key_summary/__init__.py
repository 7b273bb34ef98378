"""Mean key of every cache block that a pass wrote: the reference of the native operation (see README.md)."""

from ovspec_ops.key_summary.reference import key_summary

__all__ = ["key_summary"]
