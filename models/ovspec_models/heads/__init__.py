"""Heads that draft from a target's hidden states: published checkpoints -> OpenVINO IR."""

from ovspec_models.heads.export import HEAD_KINDS, add_head, check_target, export_head, open_head
from ovspec_models.heads.ir_weights import open_dflash

__all__ = ["HEAD_KINDS", "add_head", "check_target", "export_head", "open_dflash", "open_head"]
