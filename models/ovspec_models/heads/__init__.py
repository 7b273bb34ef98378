"""Heads that draft from a target's hidden states: published checkpoints -> OpenVINO IR."""

from ovspec_models.heads.export import add_head, check_target, export_head, open_head

__all__ = ["add_head", "check_target", "export_head", "open_head"]
