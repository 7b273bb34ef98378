"""Transforms of feed-forward layers."""
