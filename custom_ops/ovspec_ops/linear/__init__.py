"""Linear: see README.md."""
