"""The memory that a training of a head takes, from its sizes."""

from __future__ import annotations

from typing import Any

from ovspec.train.eagle3_training import TrainSettings
from ovspec_models import ModelInfo
from ovspec_models.folder.graph_files import weight_bytes
from ovspec_models.folder.head_info import BOUNDARIES

_F32 = 4
_COPIES = 4  # of a weight: itself, its gradient, and at most two means
_PROGRAM = 900 << 20  # torch, OpenVINO, and the target's passes beside its weights


def memory_needed(target: ModelInfo, config: dict[str, Any], settings: TrainSettings, longest: int) -> int:
    """Bytes at the highest, an estimate; `longest` is the longest text's tokens."""
    hidden, inner, drafted = (
        config[name] for name in ("hidden_size", "intermediate_size", "draft_vocab_size")
    )
    size, heads, kv_heads = (
        config[name] for name in ("head_dim", "num_attention_heads", "num_key_value_heads")
    )
    layer = 2 * hidden * (heads + 2 * kv_heads) * size + heads * size * hidden + 3 * hidden * inner
    weights = layer + len(config[BOUNDARIES]) * hidden * hidden + drafted * hidden
    read = weight_bytes(target.folder)
    tables = 2 * target.vocab_size * hidden
    rows = settings.batch_tokens
    # Numbers that a step keeps for a row, and as many in gradients. SmolLM2 took 5.3 GB, 5.2 were expected.
    step = 32 * hidden + 8 * inner + 8 * (heads + kv_heads) * size + 6 * heads * min(longest, rows)
    logits = 4 * rows * drafted
    bytes_: int = (
        _PROGRAM + read + _F32 * (_COPIES * weights + tables + settings.ttt_length * rows * step + logits)
    )
    return bytes_
