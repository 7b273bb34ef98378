"""What a model folder is promised: identical output or not, by the operations that may be chosen for it."""

from __future__ import annotations

from pathlib import Path

import ovspec_ops
from ovspec.devices.devices import openvino_core
from ovspec.graphs.compile import read_model
from ovspec.graphs.identity import StockProducts, identity_breakers
from ovspec.graphs.paged_graph import transform
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.linear_backend import LinearBackend
from ovspec.operations.native_attention import why_not_native
from ovspec_transforms import linear_layers


def promises(folder: Path) -> dict[str, list[str]]:
    """What breaks the promise of identical output, a sentence each, by the choice of operations.

    Nothing is compiled, and no weights are copied. Caches are taken as they are by default.

    Raises:
        ValueError: the folder holds no model that can be read.
        RuntimeError: the native library does not fit the installed OpenVINO.
    """
    core = openvino_core()
    ovspec_ops.load(core)
    graph = read_model(core, folder)
    all_stock = _breakers("stock", "stock", StockProducts.of(graph), folder)
    if why_not_native(folder):
        return {"default": all_stock}
    try:
        reports = transform(graph, AttentionConfig(), ovspec_ops.BLOCK_SIZE, ExpertConfig(optional=True))
    except ValueError as error:
        refused = [f"refused with attention='native': {error}"]
        return {"default": refused, "linear='stock'": refused, "attention='stock'": all_stock}
    found = linear_layers(graph)
    left = StockProducts.of(graph, [*reports, found], set(found.changed))
    return {
        "default": _breakers("native", "native", left, folder),
        "linear='stock'": _breakers("native", "stock", StockProducts.of(graph, reports), folder),
        "attention='stock'": all_stock,
    }


def _breakers(attention: Attention, linear: LinearBackend, stock: StockProducts, folder: Path) -> list[str]:
    """With experts as attention, which is their default."""
    chosen = Backends(
        attention=AttentionConfig(attention),
        linear=linear,
        experts=ExpertConfig(attention, optional=True),
        why_stock_attention=why_not_native(folder),
    )
    return list(identity_breakers(chosen, stock, (), ovspec_ops.BLOCK_SIZE))
