"""Routed experts of one layer, and which of them a pass may use: the references of the native operations."""

from ovspec_ops.moe.reference import dequantise, expert_budget, sparse_moe

__all__ = ["dequantise", "expert_budget", "sparse_moe"]
