"""What draft trees need of a compiled model, and why it may not have it."""

from __future__ import annotations

from collections.abc import Collection

from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import KVCache
from ovspec_transforms import QQ_BIAS

# Tensors whose rows move when the accepted path of a tree is kept.
MOVED = ("key_cache.", "value_cache.")


def why_no_tree_mask(attention: AttentionConfig, inputs: Collection[str]) -> str:
    """Why the rows of a pass can't be a tree, in words; empty where they can."""
    if attention.backend == "native" or QQ_BIAS in inputs:
        return ""
    if attention.selects:
        return "sparse verification with attention='stock' knows chains only; use attention='native'"
    return (
        "attention='stock' has a tree mask on CPUs only, and none for models with sliding windows or ALiBi; "
        "use attention='native'"
    )


def why_rows_stay(cache: KVCache, block_size: int) -> str:
    """Why rows of the cache can't be moved one by one, in words; empty where they can."""
    for spec in cache.specs:
        if spec.name.startswith(MOVED) and spec.block_shape[cache.token_axis(spec.name)] != block_size:
            return (
                f"{spec.name} has blocks of shape {list(spec.block_shape)}, whose tokens can't be moved one "
                "by one; set KEY_CACHE_QUANT_MODE=BY_TOKEN, or KV_CACHE_PRECISION to a float type"
            )
    return ""
