"""Summaries of the keys of every block that a pass wrote: reference of the native operation, see README.md."""
