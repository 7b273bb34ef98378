"""The memory plan: what a pipeline will take, and what the machine has."""
