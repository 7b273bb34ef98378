"""The pipeline: what a user constructs and calls."""
