"""The host side of block selection, by the operations that select."""

from __future__ import annotations

import openvino as ov

from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import KVCache
from ovspec.runtime.native_selection import NativeSelection
from ovspec.runtime.stock_selection import StockSelection


def host_selection(
    attention: AttentionConfig,
    block_size: int,
    compiled: ov.CompiledModel,
    cache: KVCache,
    anchors: tuple[int, ...],
) -> NativeSelection | None:
    """What a compiled model's passes need of the host to select; `None` if its graph does not select.

    Args:
        attention: the choices that the graph was made by.
        block_size: tokens per block of the cache.
        compiled: the model.
        cache: of the model.
        anchors: of every layer that stock operations make sparse, ascending.
    """
    if not attention.selects:
        return None
    rule, coverage = attention.selection, attention.coverage
    if attention.backend == "stock":
        return StockSelection(rule, coverage, block_size, compiled, cache, anchors)
    return NativeSelection(coverage, rule.refresh_interval, block_size, compiled)
