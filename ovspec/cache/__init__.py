"""Blocks of keys and values, their memory and who holds them."""
