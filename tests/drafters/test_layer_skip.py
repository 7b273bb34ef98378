"""Drafts of some layers of the target: what leaving layers out computes, and which ones are chosen."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import replace
from itertools import product

import numpy as np
import openvino as ov
import pytest
from families import NAMES, family
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino_genai import GenerationConfig
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.drafters import LayerSkipDrafter
from ovspec.drafters.layer_skip import choose_layers
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import resolve, updated
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import demo_pair_path
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import Selection

LAYERS, PROMPT = 4, 40
SMALL = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 160,
}
SHAPES: dict[str, ModelShape] = {
    "qwen3": replace(get_shape("qwen3-0.6b"), **SMALL),
    "scaled": replace(get_shape("qwen3-0.6b"), **SMALL),
    "qwen3_moe": replace(
        get_shape("qwen3-moe-64x8"), **SMALL, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}


of_shapes = pytest.mark.parametrize(
    ("name", "attention"),
    by_tier(product(SHAPES, ["native", "stock"]), [(name, "native") for name in SHAPES]),
)


def embedding(model: ov.Model) -> ov.Node:
    found: ov.Node = next(
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Gather" and len(node.get_output_partial_shape(0)) == 3
    )
    return found


def scale_embedding(model: ov.Model) -> None:
    """Multiply it by a constant, as Gemma does."""
    stream = embedding(model).output(0)
    readers = stream.get_target_inputs()
    product = ops.multiply(stream, np.float32(8)).output(0)
    for reader in readers:
        reader.replace_source_output(product)


def without(model: ov.Model, layers: Collection[int]) -> ov.Model:
    """The model with layers that add nothing to the residual stream."""
    nodes, stream = model.get_ordered_ops(), embedding(model)
    adds = 0
    for node in nodes:
        sources = [port.get_source_output().get_node().get_name() for port in node.inputs()]
        if node.get_type_name() == "Add" and stream.get_name() in sources:
            added = node.input(1 - sources.index(stream.get_name()))
            if adds // 2 in layers:  # the first of a layer adds its attention
                nothing = ops.multiply(added.get_source_output(), np.float32(0))
                added.replace_source_output(nothing.output(0))
            stream, adds = node, adds + 1
    assert adds == 2 * LAYERS
    return model


@functools.cache
def made(
    name: str, attention: Attention, skips: bool, left_out: tuple[int, ...] = (), rule: str = ""
) -> ModelRunner:
    model = without(build_model(SHAPES[name], "fp32", seed=3), left_out)
    if name == "scaled":
        scale_embedding(model)
    backends = Backends.resolve(
        model,
        "CPU",
        F32,
        AttentionConfig(attention, True, None, Selection(rule)) if rule else AttentionConfig(attention),
        ExpertConfig(attention, optional=True),
        boundaries=() if skips else (LAYERS,),
        skips_layers=skips,
    )
    return ModelRunner(model, backends=backends)


def passes(target: ModelRunner, layers: tuple[int, ...] | None) -> list[NDArray[np.float32]]:
    """Logits and last states of a prompt of two sequences, of a row of each behind it, and of four rows."""
    rng, found = np.random.default_rng(5), []
    sequences = [CachedSequence(), CachedSequence()]
    for rows in (PROMPT, 1, 4):
        chosen = None if rows == PROMPT else layers
        batch = [
            Rows(sequence, rng.integers(0, 160, rows), sampled=rows, states=rows, layers=chosen)
            for sequence in sequences
        ]
        result = target.forward(batch)
        found += [result.logits.copy(), np.array(result.states, np.float32)]
    for sequence in sequences:
        target.release(sequence)
    return found


@of_shapes
def test_a_graph_that_can_leave_layers_out_computes_the_same_bits(name: str, attention: Attention) -> None:
    expected = passes(made(name, attention, False), None)
    for got, wanted in zip(passes(made(name, attention, True), None), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@of_shapes
@pytest.mark.parametrize("left_out", [(1,), (0, 3), (0, 1, 2, 3)], ids=str)
def test_rows_pass_layers_by(name: str, attention: Attention, left_out: tuple[int, ...]) -> None:
    """Of the same rows behind a prompt that the same layers read, layers that add nothing give the same."""
    kept = tuple(layer for layer in range(LAYERS) if layer not in left_out)
    skipping, reference = made(name, attention, True, left_out), made(name, attention, False, left_out)
    for got, wanted in zip(passes(skipping, kept), passes(reference, None), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("attention", ["native", "stock"])
def test_passes_of_one_layer_each_are_a_pass_of_all(attention: Attention) -> None:
    target, sequence, token = made("qwen3", attention, True), CachedSequence(), np.array([7])
    target.prefill(sequence, np.arange(PROMPT), 64)
    result = target.forward([Rows(sequence, token, states=1)])
    wanted, true = result.logits.copy(), np.array(result.states)
    sequence.rollback(PROMPT)
    # A pass that is not run leaves the outputs of the one before: those of another token.
    assert not np.array_equal(target.forward([Rows(sequence, token + 1, states=1)]).logits, wanted)
    sequence.rollback(PROMPT)
    states = None
    for layer in ((), *((layer,) for layer in range(LAYERS))):
        result = target.forward([Rows(sequence, token, states=1, layers=layer, features=states)])
        states = np.array(result.states, np.float32)[:, np.newaxis]
        sequence.rollback(PROMPT)
    np.testing.assert_array_equal(result.logits, wanted)
    assert states is not None
    np.testing.assert_array_equal(states[:, 0], true)
    target.release(sequence)


def test_rows_of_a_pass_go_through_the_same_layers() -> None:
    target, pair = made("qwen3", "native", True), (CachedSequence(), CachedSequence())
    with pytest.raises(ValueError, match="expected the same"):
        target.forward(
            [Rows(s, np.arange(3), layers=layers) for s, layers in zip(pair, (None, (1,)), strict=True)]
        )
    for sequence in pair:
        target.release(sequence)


@pytest.mark.parametrize("kept", [set(), {2}], ids=str)
def test_layers_that_change_least_are_left_out(kept: set[int]) -> None:
    """Two sequences, whose likenesses add up; a layer that must stay does."""
    rng, size = np.random.default_rng(0), 16
    strengths = [1.0, 0.02, 0.01, 1.0, 0.03, 1.0]
    deltas = [strength * rng.standard_normal((2, 1, size)).astype(np.float32) for strength in strengths]
    first = rng.standard_normal((2, 1, size)).astype(np.float32)
    seen: list[tuple[int, ...]] = []

    def run(layers: tuple[int, ...], states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        seen.append(layers)
        assert states is None or states.shape[1] <= 3
        return first if states is None else states + sum(deltas[layer] for layer in layers)

    assert choose_layers(run, 6, 2, kept) == ({1, 4} if kept else {1, 2})
    assert seen == [(), *((layer,) for layer in range(6))]


@pytest.mark.parametrize("attention", ["native", "stock"])
def test_a_layer_that_adds_nothing_is_chosen_and_its_drafts_are_accepted(attention: Attention) -> None:
    target = made("qwen3", attention, True, (2,))
    drafter = LayerSkipDrafter(target, share=1 / LAYERS)
    config = updated(GenerationConfig(), {"max_new_tokens": 80, "num_assistant_tokens": 4})
    settings = resolve(config, (), has_draft=True)
    prompts = [list(range(PROMPT)), list(range(20, 20 + PROMPT))]
    requests = [Request(str(n), prompt, settings) for n, prompt in enumerate(prompts)]
    LLMEngine(target, drafter, "dense", 64).generate(requests)
    assert drafter.layers == (0, 1, 3)
    for request in requests:
        assert request.metrics.accepted_lengths[:-1] == [4] * 15
    assert target.blocks.usage == 0.0


@pytest.mark.parametrize(("rule", "layers"), [("mass", (0, 1, 3)), ("paper", (0, 1, 2))], ids=str)
def test_layers_of_sparse_drafts(rule: str, layers: tuple[int, ...]) -> None:
    """By the paper's rule the first three select for those after them, and stay."""
    target = made("qwen3", "native", True, (2,), rule)
    drafter = LayerSkipDrafter(target, 1 / LAYERS, SparseVerify(budget=64))
    config = updated(GenerationConfig(), {"max_new_tokens": 80, "num_assistant_tokens": 4})
    prompt = np.random.default_rng(1).integers(0, 160, 400).tolist()
    drafted, plain = (Request("0", prompt, resolve(config, (), has_draft=True)) for _ in range(2))
    found = LLMEngine(target, drafter, "dense", 64).generate([drafted])
    assert drafter.layers == layers and drafted.metrics.accepted_lengths
    assert found == LLMEngine(target, None, "dense", 64).generate([plain])


@pytest.mark.parametrize("name", by_tier(NAMES, ["demo"]))
def test_some_drafts_of_a_real_model_are_accepted(name: str) -> None:
    models = family(name)
    drafter = LayerSkipDrafter(models.target, 0.34)
    config = updated(GenerationConfig(), {"max_new_tokens": 100, "num_assistant_tokens": 4})
    request = Request("alone", models.prompts[0], resolve(config, (), has_draft=True))
    LLMEngine(models.target, drafter, "dense", 128).generate([request])
    assert drafter.layers is not None and 0 < len(drafter.layers) < models.target.computed_layers.layers  # type: ignore[union-attr]
    assert sum(request.metrics.accepted_lengths) > 10 or name != "demo"


def test_a_share_that_leaves_no_layer_is_refused() -> None:
    with pytest.raises(
        ValueError, match=f"share=0.95: .* {LAYERS} of {LAYERS} layers, expected {LAYERS - 1} at most"
    ):
        LayerSkipDrafter(made("qwen3", "native", True), share=0.95)


def test_keys_that_share_scales_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"drafter='layer_skip': key_cache.0 .* set KEY_CACHE_QUANT_MODE=BY_TOKEN"
    ):
        ovspec.LLMPipeline(
            demo_pair_path(),
            drafter="layer_skip",
            KV_CACHE_PRECISION="u8",
            KEY_CACHE_QUANT_MODE="BY_CHANNEL",
        )


@pytest.mark.parametrize("part", ["attention", "linear"])
def test_layers_of_others_are_refused(part: str) -> None:
    """Their graph computes what it leaves out."""
    with pytest.raises(ValueError, match=rf"drafter='layer_skip' .*{part}='stock'.* set both to 'native'"):
        ovspec.LLMPipeline(demo_pair_path(), drafter="layer_skip", **{part: "stock"})
