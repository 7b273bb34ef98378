"""Heads that draft from a target's hidden states: published checkpoints -> OpenVINO IR."""

from ovspec_models.heads.export import export_head, open_head

__all__ = ["export_head", "open_head"]
