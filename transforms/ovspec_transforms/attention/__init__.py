"""Transforms of attention: paged cache, row routing, block selection."""
