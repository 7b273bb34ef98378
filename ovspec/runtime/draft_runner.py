"""The model of a draft, as it runs."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from ovspec.runtime.attention_config import Attention, attention_on
from ovspec.runtime.backends import Backends
from ovspec.runtime.devices import is_cpu
from ovspec.runtime.fixed_graphs import SMALL_MODEL
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tree_limits import why_rows_stay


def draft_attention(device: str, asked: Attention | None, weight_bytes: int) -> Attention:
    """Who computes attention of a draft that reads its whole context.

    What the user asks for, else OpenVINO for small models, whose steps take 0.7 of the time that they take
    with operations of ours. Rows of a draft may depend on each other: the target decides what stands.

    Args:
        device: of the draft; what is asked for holds on a CPU.
        asked: by the user.
        weight_bytes: of the draft.
    """
    if asked and is_cpu(device):
        return asked
    return "stock" if weight_bytes <= SMALL_MODEL else attention_on(device, None)


def draft_runner(model: Path | ov.Model, backends: Backends, weight_bytes: int) -> ModelRunner:
    """A runner whose passes take `added_rows` where the model is small and no row depends on them.

    Rows depend on others by what they choose together (blocks, experts, channels), by keys of a block that
    share scales, and by the length of the text in models with long RoPE.

    Args:
        model: its folder, or the model itself.
        backends: the operations that compute it.
        weight_bytes: of the model; a large one waits for its weights, not for the plugin.

    Raises:
        ValueError: as `ModelRunner`.
    """
    runner = ModelRunner(model, backends=backends)
    limited = any(part and part.limits for part in (backends.experts, backends.ffn))
    depends = limited or backends.attention.selects or runner.long_rope is not None
    alone = not depends and not why_rows_stay(runner.cache, runner.block_size)
    runner.repeats_rows = backends.on_cpu and weight_bytes <= SMALL_MODEL and alone
    return runner
