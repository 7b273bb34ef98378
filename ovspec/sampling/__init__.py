"""Distributions, logits processors, and the acceptance of drafts."""
