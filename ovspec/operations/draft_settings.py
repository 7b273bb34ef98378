"""Settings of a draft's model that follow from its size."""

from __future__ import annotations

from collections.abc import Mapping

from ovspec.operations.attention_config import Attention
from ovspec_models import ModelInfo

_SMALL = 16 << 20  # bytes
#: Properties that decide the precision of arithmetic.
_PRECISIONS = (
    *("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"),
    *("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"),
)


def reads_all(model: ModelInfo) -> bool:
    """Whether a draft reads its whole context where the target may not: a small one with a small cache.

    To choose blocks would take longer than to read them all.
    """
    longest = model.max_position_embeddings
    if longest is None:
        return False
    return max(model.weight_bytes, longest * model.kv_cache_bytes_per_token("u8", "BY_TOKEN")) <= _SMALL


def draft_properties(
    given: Mapping[str, object], attention: Attention, weight_bytes: int
) -> dict[str, object]:
    """Properties of a draft: f32 for a small model with operations of ours, unless the user says a precision.

    They read and write f32. In bf16 a small model has as many conversions as layers, and its logits are
    rounded, so that some are equal.
    """
    small = attention == "native" and weight_bytes <= _SMALL
    if small and not any(key in given for key in _PRECISIONS):
        return {**given, "INFERENCE_PRECISION_HINT": "f32"}
    return dict(given)
