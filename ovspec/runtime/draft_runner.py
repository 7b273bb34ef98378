"""The model of a draft, as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import openvino as ov

from ovspec.runtime.attention_config import Attention
from ovspec.runtime.backends import Backends
from ovspec.runtime.fixed_compilers import SMALL_MODEL
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tree_limits import why_rows_stay
from ovspec_models import ModelInfo

#: Properties that decide the precision of arithmetic.
_PRECISIONS = (
    *("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"),
    *("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"),
)


def reads_all(model: ModelInfo) -> bool:
    """Whether a draft reads its whole context where the target may not: a small one with a small cache.

    Operations of ours choose blocks, token by token. Without them one graph drafts several: four tokens of
    the demo's draft model took 0.7 ms in place of 2.7.
    """
    longest = model.max_position_embeddings
    if longest is None:
        return False
    return max(model.weight_bytes, longest * model.kv_cache_bytes_per_token("u8", "BY_TOKEN")) <= SMALL_MODEL


def draft_properties(
    given: Mapping[str, object], attention: Attention, weight_bytes: int
) -> dict[str, object]:
    """Properties of a draft: f32 for a small model with operations of ours, unless the user says a precision.

    They read and write f32. In bf16 a small model has as many conversions as layers, and a graph of several
    steps rounds logits, so that some are equal.
    """
    small = attention == "native" and weight_bytes <= SMALL_MODEL
    if small and not any(key in given for key in _PRECISIONS):
        return {**given, "INFERENCE_PRECISION_HINT": "f32"}
    return dict(given)


def draft_runner(model: Path | ov.Model, backends: Backends, weight_bytes: int) -> ModelRunner:
    """A runner whose passes take `added_rows` where the model is small and no row depends on them.

    Rows depend on others by what they choose together (blocks, experts, channels), by keys of a block that
    share scales, and by the length of the text in models with long RoPE. Layers of linear attention would
    keep the state behind added rows.

    Args:
        model: its folder, or the model itself.
        backends: the operations that compute it.
        weight_bytes: of the model; a large one waits for its weights, not for the plugin.

    Raises:
        ValueError: as `ModelRunner`.
    """
    runner = ModelRunner(model, backends=backends)
    chooses = backends.limits_weights or backends.attention.selects
    depends = chooses or runner.long_rope is not None or runner.recurrent
    alone = not depends and not why_rows_stay(runner.cache, runner.block_size)
    if runner.fixed_graphs is not None:
        runner.fixed_graphs.drafts = True
    runner.repeats_rows = backends.on_cpu and weight_bytes <= SMALL_MODEL and alone
    return runner
