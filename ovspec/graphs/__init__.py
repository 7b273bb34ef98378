"""A model's graph: transformed, compiled, kept in CACHE_DIR."""
