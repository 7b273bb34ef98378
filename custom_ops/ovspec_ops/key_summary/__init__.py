"""Summaries of the keys of every cache block that a pass wrote: the reference of the native operation (see README.md)."""
