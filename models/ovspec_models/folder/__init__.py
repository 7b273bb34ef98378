"""What a model folder holds."""
