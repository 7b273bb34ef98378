"""Transforms of linear layers."""
