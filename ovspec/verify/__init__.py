"""Verification modes: dense, sparse, committed."""
