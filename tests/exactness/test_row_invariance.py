"""Logits of a text, computed in random splits, agree to the last bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ovspec
from numpy.typing import NDArray
from tiny_checkpoints import TINY, export_tiny

from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.row_check import random_text
from ovspec.runtime.row_invariance import RowProof
from ovspec_models import demo_pair_path
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import WEIGHT_FORMATS, build_model
from ovspec_ops import loader

LLAMA = replace(
    get_shape("llama-3.1-8b"),
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, vocab_size=999, max_position_embeddings=4096,
)  # fmt: skip
PRECISIONS: dict[str, dict[str, str]] = {
    "default": {},
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
}
# Caches that the plugin gives at an inference precision.
CACHES = {"default": ("u8", "bf16"), "f32": ("u8", "f16", "f32"), "bf16": ("u8", "bf16")}
SETTINGS = [(precision, cache) for precision, caches in CACHES.items() for cache in caches]
QUICK = {("int8", "default", "u8"), ("int8", "f32", "f32"), ("fp32", "f32", "f32"), ("int4", "default", "u8")}


def properties(precision: str, cache: str, threads: int = 1) -> dict[str, Any]:
    return {**PRECISIONS[precision], "KV_CACHE_PRECISION": cache, "INFERENCE_NUM_THREADS": threads}


def prove(runner: ModelRunner, text: NDArray[np.int64], splits: int, largest_chunk: int = 140) -> RowProof:
    """Assert that every split gives the bits of one row a pass."""
    proof = RowProof(runner, text)
    logits = proof.reference.outputs["logits"]
    assert np.isfinite(logits).all() and logits.std() > 0.1
    for seed in range(splits):
        difference = proof.difference(seed, largest_chunk)
        assert difference is None, f"split {seed}: {difference}"
    return proof


def grid() -> Iterator[Any]:
    for weights in WEIGHT_FORMATS:
        for precision, cache in SETTINGS:
            quick = (weights, precision, cache) in QUICK
            name = f"{weights}-{precision}-{cache}"
            yield pytest.param(weights, precision, cache, id=name, marks=() if quick else pytest.mark.sweep)


@pytest.mark.parametrize(("weights", "precision", "cache"), list(grid()))
def test_formats_and_precisions(weights: str, precision: str, cache: str) -> None:
    runner = ModelRunner(build_model(LLAMA, weights), properties=properties(precision, cache))
    prove(runner, random_text(LLAMA.vocab_size, 150), 6)


@pytest.mark.sweep
@pytest.mark.parametrize(("precision", "cache"), SETTINGS)
@pytest.mark.parametrize("isa", ["amx", "avx512vnni", "avx512", "avx2vnni", "avx2", "plain"])
def test_instruction_sets(isa: str, precision: str, cache: str) -> None:
    if isa not in loader.available_isas():
        pytest.skip(f"this processor lacks {isa}")
    before = loader.active_isa()
    loader.set_isa(isa)
    try:
        runner = ModelRunner(
            build_model(LLAMA, "int8"), properties=properties(precision, cache), linear="native"
        )
        prove(runner, random_text(LLAMA.vocab_size, 150), 6)
    finally:
        loader.set_isa(before)


@pytest.mark.parametrize(
    ("precision", "cache"), [("default", "u8"), pytest.param("f32", "f32", marks=pytest.mark.sweep)]
)
def test_demo_target_with_one_thread_and_two(precision: str, cache: str) -> None:
    text = random_text(4096, 130)
    references = []
    for threads in (1, 2):
        runner = ModelRunner(demo_pair_path(), properties=properties(precision, cache, threads))
        references.append(prove(runner, text, 4).reference.outputs["logits"])
    assert np.array_equal(references[0].view(np.uint32), references[1].view(np.uint32))


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["default", "f32"])
@pytest.mark.parametrize("name", [n for n in TINY if "ALiBi" not in n and n not in ("Bloom", "MPT")])
def test_families(name: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    runner = ModelRunner(export_tiny(name, tmp_path), properties=properties(precision, "u8"))
    prove(runner, random_text(4096, 100), 6)


def test_the_proof_finds_stock_attention() -> None:
    """A path that is known to follow the rows of a pass is found, and named with its reason."""
    stock = AttentionConfig(backend="stock")
    runner = ModelRunner(
        build_model(LLAMA, "int8"), attention=stock, properties=properties("f32", "f32"), watch=True
    )
    proof = RowProof(runner, random_text(LLAMA.vocab_size, 100))
    found = [proof.difference(seed) for seed in range(4)]
    first = next(difference for difference in found if difference is not None)
    assert first.operation is not None and "PagedAttention" in first.operation
    assert any(reason.startswith("attention='stock'") for reason in runner.identity_breakers)


def test_reasons_are_named() -> None:
    by_channel = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    runner = ModelRunner(build_model(LLAMA, "int8"), properties=by_channel, linear="stock")
    causes = [reason.split(":")[0].split(" ")[0] for reason in runner.identity_breakers]
    assert causes == ["15", "u8"]  # four products of attention and three of the MLP a layer, and the head
    native = ModelRunner(build_model(LLAMA, "int8"), linear="native")
    assert native.identity_breakers == ()


def test_self_check_of_a_model(demo_ir: Path) -> None:
    run = ovspec("info", "--self-check", "--model", demo_ir, "--splits", "2", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rows"] == {"splits": 2, "difference": None, "identity_breakers": []}


def test_model_without_self_check_is_refused(demo_ir: Path) -> None:
    run = ovspec("info", "--model", demo_ir)
    assert run.returncode == 2 and "--model is for --self-check" in run.stderr
