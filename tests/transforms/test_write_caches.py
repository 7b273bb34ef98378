"""CacheWrite in place of stock nodes: what it replaces, and that the bits stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from settings import F32

from ovspec.cache.cache import CachedSequence
from ovspec.graphs.paged_graph import lower
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner import model_runner
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import Selection, route_rows, select_blocks, to_paged, write_caches


def routed(layers: int = 3) -> ov.Model:
    model = build_model(get_shape("qwen3-0.6b", layers, 1000), "int8")
    to_paged(model)
    route_rows(model)
    return model


def names(model: ov.Model) -> set[str]:
    return {name for port in model.inputs for name in port.get_names()}


@pytest.mark.parametrize("selects", [False, True])
def test_every_stock_node_is_replaced(selects: bool) -> None:
    """Inputs that it alone read are gone: summaries and selection go by other tables."""
    model = routed()
    if selects:
        select_blocks(model, [0, 2], Selection("paper"))
    before = names(model)
    assert write_caches(model, ov.Type.u8).count == 3
    found = Counter(node.get_type_name() for node in model.get_ops())
    assert found["CacheWrite"] == found["VerifyAttention"] == 3 and not found["PagedAttentionExtension"]
    assert found["KeySummary"] == 2 * selects
    gone = {
        *("max_context_len", "past_lens", "block_indices"),
        *("block_indices_begins", "subsequence_begins", "written_begins"),
    }
    assert before - names(model) == gone and names(model) - before == {"slot_mapping"}
    caches = [port for port in model.inputs if "cache" in port.get_any_name()]
    assert len(caches) == 6
    for port in caches:
        assert port.get_element_type() == ov.Type.u8
        assert port.get_partial_shape() == ov.PartialShape([-1, 8, 32, 136])


@pytest.mark.parametrize(
    ("backend", "properties", "written"),
    [
        ("native", {}, ov.Type.u8),
        ("native", {"KV_CACHE_PRECISION": "u8"}, ov.Type.u8),
        ("native", {"KEY_CACHE_PRECISION": "u8", "VALUE_CACHE_PRECISION": "u8"}, ov.Type.u8),
        ("native", {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}, None),
        ("native", {"KEY_CACHE_PRECISION": "u8", "VALUE_CACHE_PRECISION": "f16"}, None),
        ("native", {"KV_CACHE_PRECISION": "f16"}, None),
        ("native", {"KEY_CACHE_GROUP_SIZE": 32}, None),
        ("native", F32, ov.Type.f32),
        ("native", {"KV_CACHE_PRECISION": "f32"}, None),
        ("stock", {}, None),
    ],
)
def test_where_caches_are_ours_to_write(
    demo_ir: Path, backend: Any, properties: dict[str, Any], written: ov.Type | None
) -> None:
    found = Backends.resolve(demo_ir, properties=properties, attention=AttentionConfig(backend))
    assert found.written_type == written


def logits(folder: Path, selects: bool, precision: str) -> list[np.ndarray[Any, Any]]:
    """Of prompts, verified drafts, a tree, and passes of two sequences, with rollbacks."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": precision}
    runner = ModelRunner(folder, attention=AttentionConfig("native", selects=selects), properties=settings)
    tokens, found = np.random.default_rng(0).integers(2, 4000, 900), []
    one, two = CachedSequence(), CachedSequence()

    def run(*batch: Rows) -> None:
        found.append(np.array(runner.forward(batch).logits))

    run(Rows(one, tokens[:300]))
    run(Rows(two, tokens[300:341]), Rows(one, tokens[300:305], sampled=5))
    one.rollback(301)
    tree = np.array([-1, 0, 0, 2, 1], np.int32)
    run(Rows(one, tokens[:5], sampled=5, parents=tree))
    one.rollback(302)
    for _ in range(3):
        run(Rows(one, tokens[5:6], budget=4 if selects else -1), Rows(two, tokens[7:10], sampled=3))
    assert ("slot_mapping" in runner._inputs.names) == (runner.backends.written_type is not None)
    return found


@pytest.mark.parametrize("precision", ["u8", "f32"])
@pytest.mark.parametrize("selects", [False, True])
def test_bits_are_those_behind_the_stock_node(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch, selects: bool, precision: str
) -> None:
    """In f32; in bf16 that one rounds values before they become bytes. No operations are joined."""
    monkeypatch.setattr(model_runner, "lower", lambda *graph, joins: lower(*graph, joins=False))
    ours = logits(demo_ir, selects, precision)
    monkeypatch.setattr(Backends, "written_type", None)
    for one, other in zip(ours, logits(demo_ir, selects, precision), strict=True):
        np.testing.assert_array_equal(one, other)
