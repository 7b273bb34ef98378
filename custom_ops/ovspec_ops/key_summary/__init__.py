"""Summaries of the keys of the blocks that a pass wrote: reference of the native operation, see README.md."""
