"""Measurements behind `ovspec bench`."""
