"""Writes keys and values of rows into the paged cache: reference of the native operation, see README.md."""
