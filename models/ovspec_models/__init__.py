"""Export of Hugging Face checkpoints to OpenVINO IR for ovspec, and what such a folder holds."""

from ovspec_models.channel_sets import CHANNELS_NAME, ChannelSets
from ovspec_models.config import CreatedBy, ModelSection, OvspecConfig, VerifySection
from ovspec_models.demo_pair import demo_pair_path
from ovspec_models.export import export_model
from ovspec_models.model_info import ModelInfo
from ovspec_models.tokenizer_check import check_same_token_ids
from ovspec_models.weight_sizes import WeightSizes

__all__ = [
    "CHANNELS_NAME",
    "ChannelSets",
    "CreatedBy",
    "ModelInfo",
    "ModelSection",
    "OvspecConfig",
    "VerifySection",
    "WeightSizes",
    "check_same_token_ids",
    "demo_pair_path",
    "export_model",
]
