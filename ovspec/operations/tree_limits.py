"""What draft trees need of a compiled model, and why it may not have it."""

from __future__ import annotations

from collections.abc import Collection

from ovspec.cache.cache import KVCache
from ovspec.devices.devices import masks_trees
from ovspec.operations.backends import Backends
from ovspec_transforms import QQ_BIAS

# Tensors whose rows move when the accepted path of a tree is kept.
MOVED = ("key_cache.", "value_cache.")


def why_no_tree_mask(backends: Backends, inputs: Collection[str], keeps_states: bool = False) -> str:
    """Why the rows of a pass can't be a tree, in words; empty where they can."""
    if keeps_states:
        return (
            "its layers of linear attention read a text token by token, and a tree is no text; draft chains: "
            "leave tree_depth out"
        )
    attention = backends.attention
    if attention.backend == "native" or QQ_BIAS in inputs:
        return ""
    remedy = "use attention='native'" if backends.on_cpu else "draft chains: leave tree_depth out"
    if attention.selects:
        return f"sparse verification with attention='stock' knows chains only; {remedy}"
    if not masks_trees(backends.device):
        return (
            "OpenVINO's attention for matrix units (XMX) reads the tree masks of all sequences but the first "
            f"at a wrong place; {remedy}"
        )
    return f"attention='stock' has no tree mask for models with sliding windows or ALiBi; {remedy}"


def why_rows_stay(cache: KVCache, block_size: int) -> str:
    """Why rows of the cache can't be moved one by one, in words; empty where they can."""
    for spec in cache.specs:
        if not spec.name.startswith(MOVED):
            continue
        shape = f"{spec.name} has blocks of shape {list(spec.block_shape)}"
        shape += ", whose tokens can't be moved one by one"
        if cache.on_device and spec.element_type.is_integral():
            return f"{shape}: a GPU keeps their scales apart; set KV_CACHE_PRECISION to a float type"
        if spec.block_shape[cache.token_axis(spec.name)] != block_size:
            return f"{shape}; set KEY_CACHE_QUANT_MODE=BY_TOKEN, or KV_CACHE_PRECISION to a float type"
    return ""
