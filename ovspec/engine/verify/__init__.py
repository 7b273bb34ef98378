"""Verification of drafts: what is accepted, kept and committed."""
