"""A checkpoint becomes a model folder."""
