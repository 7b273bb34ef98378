"""ovspec: sparse verification for speculative decoding on OpenVINO."""

from importlib.metadata import version

from openvino_genai import ChatHistory, StreamerBase, StreamingStatus, TokenizedInputs

from ovspec.commit_verify import CommitVerify
from ovspec.draft_model import draft_model
from ovspec.generation_config import GenerationConfig
from ovspec.metrics import PerfMetrics
from ovspec.pipeline import LLMPipeline
from ovspec.results import DecodedResults, EncodedResults
from ovspec.verify_config import SparseVerify
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
    "SparseVerify",
    "StreamerBase",
    "StreamingStatus",
    "TokenizedInputs",
    "draft_model",
    "extension_path",
]
