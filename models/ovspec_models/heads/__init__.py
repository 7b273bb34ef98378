"""Heads that draft from a target's hidden states: published checkpoints -> OpenVINO IR."""

from ovspec_models.heads.corrections import Correction as Correction
from ovspec_models.heads.corrections import open_correction as open_correction
from ovspec_models.heads.export import HEAD_KINDS as HEAD_KINDS
from ovspec_models.heads.export import add_head as add_head
from ovspec_models.heads.export import check_settings as check_settings
from ovspec_models.heads.export import check_target as check_target
from ovspec_models.heads.export import export_head as export_head
from ovspec_models.heads.export import open_head as open_head
from ovspec_models.heads.hydra import open_hydra as open_hydra
from ovspec_models.heads.ir_weights import open_dflash as open_dflash
