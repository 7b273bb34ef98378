"""Transforms of mixtures of experts."""
