"""ovspec: sparse verification for speculative decoding on OpenVINO."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openvino_genai import ChatHistory, StreamerBase, StreamingStatus, TokenizedInputs

    from ovspec import drafters as drafters
    from ovspec.adapters.adapter import Adapter
    from ovspec.adapters.adapter_config import AdapterConfig
    from ovspec.errors import PipelineBusyError
    from ovspec.generation.generation_config import GenerationConfig
    from ovspec.generation.metrics import PerfMetrics
    from ovspec.generation.results import DecodedResults, EncodedResults
    from ovspec.modes.commit_verify import CommitVerify
    from ovspec.modes.sparse_prefill import SparsePrefill
    from ovspec.pipeline.models.draft_model import draft_model
    from ovspec.pipeline.pipeline import LLMPipeline
    from ovspec.pipeline.vlm_pipeline import VLMPipeline
    from ovspec_models.folder.sparse_verify import SparseVerify
    from ovspec_ops import extension_path

__version__ = version("ovspec")
__all__ = [
    "Adapter",
    "AdapterConfig",
    "ChatHistory",
    "CommitVerify",
    "DecodedResults",
    "EncodedResults",
    "GenerationConfig",
    "LLMPipeline",
    "PerfMetrics",
    "PipelineBusyError",
    "SparsePrefill",
    "SparseVerify",
    "StreamerBase",
    "StreamingStatus",
    "TokenizedInputs",
    "VLMPipeline",
    "draft_model",
    "extension_path",
]

# Where each public name is defined. Loading OpenVINO takes a second of processor time, so a name is imported
# when it is first used: `ovspec --version` and the errors of the command line need none of them.
_MODULES = {
    "Adapter": "ovspec.adapters.adapter",
    "AdapterConfig": "ovspec.adapters.adapter_config",
    "ChatHistory": "openvino_genai",
    "CommitVerify": "ovspec.modes.commit_verify",
    "DecodedResults": "ovspec.generation.results",
    "EncodedResults": "ovspec.generation.results",
    "GenerationConfig": "ovspec.generation.generation_config",
    "LLMPipeline": "ovspec.pipeline.pipeline",
    "PerfMetrics": "ovspec.generation.metrics",
    "PipelineBusyError": "ovspec.errors",
    "SparsePrefill": "ovspec.modes.sparse_prefill",
    "SparseVerify": "ovspec_models.folder.sparse_verify",
    "StreamerBase": "openvino_genai",
    "StreamingStatus": "openvino_genai",
    "TokenizedInputs": "openvino_genai",
    "VLMPipeline": "ovspec.pipeline.vlm_pipeline",
    "draft_model": "ovspec.pipeline.models.draft_model",
    "extension_path": "ovspec_ops",
}


def __getattr__(name: str) -> object:
    if name == "drafters":
        return import_module("ovspec.drafters")
    if name not in _MODULES:
        raise AttributeError(f"module 'ovspec' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "drafters"})
