"""Decoder layers as one operation: what its steps are, and the transformation that puts it into a graph."""
