"""ovspec: sparse verification for speculative decoding on OpenVINO."""

from importlib.metadata import version

from openvino_genai import ChatHistory, StreamerBase, StreamingStatus, TokenizedInputs

from ovspec.errors import PipelineBusyError
from ovspec.generation.generation_config import GenerationConfig
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.results import DecodedResults, EncodedResults
from ovspec.pipeline.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.verify.commit_verify import CommitVerify
from ovspec.verify.verify_config import SparseVerify
from ovspec_ops import extension_path

__version__ = version("ovspec")
__all__ = [
    "ChatHistory",
    "CommitVerify",
    "DecodedResults",
    "EncodedResults",
    "GenerationConfig",
    "LLMPipeline",
    "PerfMetrics",
    "PipelineBusyError",
    "SparseVerify",
    "StreamerBase",
    "StreamingStatus",
    "TokenizedInputs",
    "draft_model",
    "extension_path",
]
