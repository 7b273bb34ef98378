"""Export of Hugging Face checkpoints to OpenVINO IR for ovspec, and what such a folder holds."""

from typing import TYPE_CHECKING

from ovspec_models.demo_pair import demo_pair_path
from ovspec_models.folder.config import CreatedBy, ModelSection, OvspecConfig
from ovspec_models.folder.model_info import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_models.folder.tokenizer_check import check_same_token_ids
from ovspec_models.folder.weight_sizes import WeightSizes

if TYPE_CHECKING:
    from ovspec_models.export.export import export_model

__all__ = [
    "CreatedBy",
    "ModelInfo",
    "ModelSection",
    "OvspecConfig",
    "SparseVerify",
    "WeightSizes",
    "check_same_token_ids",
    "demo_pair_path",
    "export_model",
]


def __getattr__(name: str) -> object:
    """`export_model`, imported when it is asked for: a pipeline starts without it, and sooner."""
    if name != "export_model":
        raise AttributeError(f"module 'ovspec_models' has no attribute {name!r}")
    from ovspec_models.export.export import export_model

    return export_model
