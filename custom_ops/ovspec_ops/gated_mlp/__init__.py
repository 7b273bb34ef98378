"""Gated MLP of one layer that reads a part of its channels: the reference and the layouts of its weights."""
