"""Decoder layers as one operation against the graph that they replace."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from settings import F32
from tiers import by_tier

from ovspec.cache.cache import CachedSequence
from ovspec.graphs.paged_graph import lower
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows
from ovspec.runner import model_runner
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic.decoder import build_model
from ovspec_transforms import DECODER_LAYERS, RowSight

SMALL: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 136,
    "intermediate_size": 264,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 300,
}


def model(name: str, weight_format: str) -> ov.Model:
    return build_model(replace(get_shape(name), **SMALL), weight_format, group_size=8)


def logits(runner: ModelRunner) -> NDArray[np.float32]:
    """Of a prompt behind another, and of rows that follow both."""
    tokens = np.arange(70) * 7 % 300
    sequences = CachedSequence(), CachedSequence()
    found = [runner.forward([Rows(sequences[0], tokens[:45], sampled=45)]).logits.copy()]
    found.append(runner.forward([Rows(sequences[1], tokens[3:70], sampled=2)]).logits.copy())
    rows = [Rows(sequence, tokens[:4], sampled=4) for sequence in sequences]
    found.append(runner.forward(rows).logits.copy())
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("name", "weight_format"),
    by_tier(
        product(["qwen3-0.6b", "llama-3.1-8b"], ["int8", "int4", "fp16"]),
        [("qwen3-0.6b", "int4"), ("llama-3.1-8b", "int8")],
    ),
)
def test_the_layers_of_a_model(name: str, weight_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounded rows would differ: a value between two integers may fall to either, and moves all that follow.
    exact = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    joined = logits(ModelRunner(model(name, weight_format), properties=exact))
    monkeypatch.setattr(model_runner, "lower", lambda *graph, joins: lower(*graph, joins=False))
    apart = logits(ModelRunner(model(name, weight_format), properties=exact))
    np.testing.assert_allclose(joined, apart, rtol=0, atol=2e-5 * np.abs(apart).max())


def test_what_rows_see_in_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    plain = ModelRunner(model("qwen3-0.6b", "int8"), properties=exact)
    sights = (RowSight(past_window=2), RowSight(), RowSight(past_window=9, causal=False))

    def with_sights(*sights: RowSight) -> NDArray[np.float32]:
        return logits(
            ModelRunner(model("qwen3-0.6b", "int8"), backends=replace(plain.backends, sights=sights))
        )

    joined, others = (
        with_sights(*sights),
        [(*sights[:2], RowSight(9)), (RowSight(), *sights[1:]), sights[::-1]],
    )
    changed = [with_sights(*other) for other in others]
    monkeypatch.setattr(model_runner, "lower", lambda *graph, joins: lower(*graph, joins=False))
    tolerance = 2e-5 * np.abs(joined).max()
    np.testing.assert_allclose(joined, with_sights(*sights), rtol=0, atol=tolerance)
    for other in changed:
        assert np.abs(joined - other).max() > 100 * tolerance


@pytest.mark.parametrize("selects", [False, True])
def test_no_node_of_a_layer_is_left(selects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sparse pass too. What no node reads any more is no input: caches are read by their addresses."""
    graphs, held = list[Counter[str]](), list[tuple[int, int]]()
    compile_paged = model_runner.compile_paged

    def compiled(core: ov.Core, graph: ov.Model, *rest: Any) -> ov.CompiledModel:
        graphs.append(Counter(node.get_type_name() for node in graph.get_ops()))
        held.extend(weights(graph))
        assert all(port.get_target_inputs() for port in graph.inputs)
        return compile_paged(core, graph, *rest)

    monkeypatch.setattr(model_runner, "compile_paged", compiled)
    attention = AttentionConfig("native", selects=True) if selects else None
    runner = ModelRunner(model("qwen3-0.6b", "int8"), attention=attention, properties=F32)
    tables = {"verify_budgets", "verify_coverage", "summarised_lens"} if selects else set()
    inputs = {port.get_any_name() for port in runner.compiled.inputs}
    assert inputs == tables | {
        *("input_ids", "position_ids", "sampled_tokens_indices"),
        *("slot_mapping", "verify_tables", "cache_table"),
    }
    sides = ("key_cache", "value_cache", "key_summary")[: 2 + selects]
    names = {f"{side}.{layer}" for side in sides for layer in range(3)}
    assert {spec.name for spec in runner.cache.specs} == names
    (counts,) = graphs
    assert counts[DECODER_LAYERS] and not counts["Linear"] + counts["VerifyAttention"] + counts["CacheWrite"]
    assert not counts["Power"] + counts["Swish"] + counts["Add"]
    assert not counts["BlockSelect"] + counts["KeySummary"]
    for (_, end), (begin, _) in itertools.pairwise(sorted(held)):
        assert end <= begin, "an entry of CACHE_DIR would hold weights twice"


def weights(graph: ov.Model) -> Iterator[tuple[int, int]]:
    """Begin and end of the weights that each operation of layers reads."""
    for node in graph.get_ops():
        for port in node.inputs() if node.get_type_name() == DECODER_LAYERS else ():
            source = port.get_source_output().get_node()
            if source.get_type_name() == "Constant":
                data = source.get_data()
                yield data.ctypes.data, data.ctypes.data + data.nbytes


@pytest.mark.parametrize(
    ("name", "weight_format"),
    [("qwen3-0.6b", "int8"), ("llama-3.1-8b", "int4"), ("qwen3-0.6b", "fp16"), ("llama-3.1-8b", "fp32")],
)
def test_a_model_that_drafts(name: str, weight_format: str) -> None:
    """Its embedding and output layer are in the operation, with the same bits."""
    apart = ModelRunner(model(name, weight_format), properties=F32)
    whole = ModelRunner(model(name, weight_format), backends=replace(apart.backends, drafts=True))
    assert whole.drafts and not apart.drafts
    np.testing.assert_array_equal(logits(whole), logits(apart))
    sequence, tokens = CachedSequence(), np.arange(30)
    found = whole.forward([Rows(sequence, tokens, drafts=4, vocab_size=300)]).drafts[:, 0].tolist()
    one_by_one, expected = CachedSequence(), list[int]()
    for _ in range(4):
        expected.append(int(apart.forward([Rows(one_by_one, tokens)]).logits.argmax()))
        tokens = np.array(expected[-1:])
    assert found == expected and sequence.length == one_by_one.length


def test_a_model_that_selects_does_not_draft() -> None:
    attention = AttentionConfig("native", selects=True)
    apart = ModelRunner(model("qwen3-0.6b", "int8"), attention=attention, properties=F32)
    whole = ModelRunner(model("qwen3-0.6b", "int8"), backends=replace(apart.backends, drafts=True))
    assert not whole.drafts
    np.testing.assert_array_equal(logits(whole), logits(apart))
