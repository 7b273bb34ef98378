"""Decoder layers as one operation: what its steps are, and the pass that puts it into a graph."""
