"""Which nodes of a family's layers are in `DecoderLayers`, and that it computes what they have computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tiers
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import FIRST, TINY, by_tier

from ovspec.cache.cache import CachedSequence
from ovspec.devices.devices import openvino_core
from ovspec.graphs.paged_graph import lower, transform
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.passes.tables import Rows
from ovspec.runner import model_runner
from ovspec.runner.model_runner import ModelRunner
from ovspec_transforms import DECODER_LAYERS

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

Exported = Callable[[str], Path]

NATIVE = [name for name in TINY if name not in ("Bloom", "MPT", "Falcon, ALiBi")]
SPARSE = [name for name in NATIVE if not all(TINY[name].windows)]
# Of the logits' spread: sums in another order.
TOLERANCE = 2e-4
# Operations that stay beside DecoderLayers, and the stretches that they leave, with that of the output layer.
LEFT = {
    "Qwen3.5": (3, {"PagedGatedDeltaNet": 1, "PagedCausalConv1D": 1}),
    "Qwen3-Next": (3, {"PagedGatedDeltaNet": 1, "PagedCausalConv1D": 1}),
    "Falcon, new architecture": (4, {}),
    "Gemma 3n": (28, {"MatMul": 4}),  # four streams of rows, mixed between layers
    # Its routing sums scores that are gathered, and its experts stand in three dimensions.
    "AFMoE": (2, {"Linear": 1}),
    "AFMoE, no shared experts": (2, {"Linear": 1}),
    "Gemma 4": (18, {}),  # every layer reads a part of its own of each token
    "Gemma 4, experts": (7, {"MatMul": 6}),  # experts with GELU stay OpenVINO's
    **dict.fromkeys(
        ("Granite 4 hybrid", "Granite 4 hybrid, no positions and experts"),
        (3, {"PagedSelectiveSSM": 1, "PagedCausalConv1D": 1}),
    ),
    "Llama 4": (6, {"MatMul": 4}),  # experts in three dimensions
    "LFM2": (3, {"PagedCausalConv1D": 1}),
    "LFM2-MoE": (4, {"PagedCausalConv1D": 1}),
}
# Layers that GatedMLP can't take beside others that it can.
PARTLY_GATED = ("Gemma 3n", "Gemma 4")
_HEAVY = (
    *("Linear", "MatMul", "CacheWrite", "VerifyAttention", "KeySummary", "BlockSelect"),
    *("GatedMLP", "SparseMoE", "ExpertBudget"),
    *("PagedGatedDeltaNet", "PagedSelectiveSSM", "PagedCausalConv1D"),
)


def backends(name: str, folder: Path, sparse: bool) -> Backends:
    """Everything that a family can limit, or nothing."""
    tiny = TINY[name]
    experts = ExpertConfig(budget=2 if sparse else None) if tiny.moe_layers else None
    ffn = FfnConfig(density=0.5) if sparse and tiny.gated and name not in PARTLY_GATED else None
    attention = AttentionConfig("native", selects=sparse)
    return Backends.resolve(folder, "CPU", F32, attention, experts, ffn)


def check(name: str, folder: Path, sparse: bool) -> None:
    choices = backends(name, folder, sparse)
    graph = openvino_core().read_model(folder / "openvino_model.xml")
    transform(graph, choices.attention, 32, choices.experts, choices.ffn)
    lower(graph, choices)
    counts = Counter(node.get_type_name() for node in graph.get_ops())
    stretches, left = LEFT.get(name, (2, {}))
    assert counts[DECODER_LAYERS] == stretches
    assert {kind: counts[kind] for kind in _HEAVY if counts[kind]} == left


@pytest.mark.parametrize("name", by_tier(NATIVE))
def test_nodes_of_dense_layers(name: str, exported_family: Exported) -> None:
    check(name, exported_family(name), sparse=False)


@pytest.mark.parametrize("name", by_tier(SPARSE))
def test_nodes_of_sparse_layers(name: str, exported_family: Exported) -> None:
    check(name, exported_family(name), sparse=True)


@pytest.mark.parametrize(
    ("properties", "written", "stretches"),
    [
        ({"KV_CACHE_PRECISION": "f16"}, 2, 0),
        ({"KV_CACHE_PRECISION": "bf16"}, 2, 0),
        ({"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}, 2, 0),
        ({"KV_CACHE_PRECISION": "u8"}, 0, 2),
        ({}, 0, 2),
    ],
)
def test_layers_whose_caches_openvino_writes_stay_nodes(
    properties: dict[str, str], written: int, stretches: int, exported_family: Exported
) -> None:
    folder = exported_family("Llama")
    for attention in ("native", "stock"):
        choices = Backends.resolve(folder, "CPU", properties, AttentionConfig(attention))
        graph = openvino_core().read_model(folder / "openvino_model.xml")
        transform(graph, choices.attention, 32)
        lower(graph, choices)
        counts = Counter(node.get_type_name() for node in graph.get_ops())
        native = attention == "native"
        assert counts["PagedAttentionExtension"] == (written if native else 2)
        assert counts[DECODER_LAYERS] == (stretches if native else 0)


def logits(name: str, folder: Path, sparse: bool, prompt: NDArray[np.int64]) -> NDArray[np.float32]:
    """Of a prompt in two chunks, and of verified rows behind it, beside another sequence, with all limits."""
    runner = ModelRunner(folder, backends=backends(name, folder, sparse))
    sequences = CachedSequence(), CachedSequence()
    found = [runner.forward([Rows(sequences[0], prompt[:60], sampled=60)]).logits.copy()]
    rows = [Rows(sequences[0], prompt[60:140], sampled=9), Rows(sequences[1], prompt[:40], sampled=2)]
    found.append(runner.forward(rows).logits.copy())
    rows = [Rows(sequences[0], prompt[140:144], sampled=4), Rows(sequences[1], prompt[40:43], sampled=3)]
    if sparse:
        rows = [replace(one, budget=3, limits_experts=True, limits_channels=True) for one in rows]
    result = runner.forward(rows)
    assert (result.blocks_read(0) is not None) == sparse
    found.append(result.logits.copy())
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("name", "sparse"),
    tiers.by_tier(product(NATIVE, (False, True)), [(name, name in SPARSE) for name in FIRST]),
)
def test_computes_what_the_nodes_have_computed(
    name: str,
    sparse: bool,
    exported_family: Exported,
    prompt: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sparse and name not in SPARSE:
        pytest.skip("every layer has a window and stays dense")
    joined = logits(name, exported_family(name), sparse, prompt)
    monkeypatch.setattr(model_runner, "lower", lambda *graph, joins: lower(*graph, joins=False))
    apart = logits(name, exported_family(name), sparse, prompt)
    assert np.abs(joined - apart).max() < TOLERANCE * apart.std()
