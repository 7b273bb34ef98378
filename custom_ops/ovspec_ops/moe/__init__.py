"""Routed experts of one layer, and which of them a pass may use: the references of the native operations."""
