"""Readers of weight constants in a graph."""
