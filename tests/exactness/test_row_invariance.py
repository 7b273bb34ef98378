"""Logits of a text, computed in random splits, agree to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exactness.grid import (
    FAMILIES,
    SPLITS,
    STOCK_EXPERTS,
    Case,
    formats_of,
    instruction_set,
    prove,
    text_of,
)
from made_once import MakeOnce
from tiny_checkpoints import export_tiny

from ovspec.operations.attention_config import AttentionConfig
from ovspec.proofs.row_check import random_text
from ovspec.proofs.row_invariance import RowProof
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import demo_pair_path
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_ops import loader

LLAMA = replace(
    get_shape("llama-3.1-8b"),
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, vocab_size=999, max_position_embeddings=4096,
)  # fmt: skip
QUICK = [("int8", "default", "u8"), ("int8", "f32", "f32"), ("fp32", "f32", "f32"), ("int4", "default", "u8")]
#: NNCF refuses groups of 32 for these, as some of their matrices have a row of fewer numbers.
NARROW = ("Cohere", "Gemma 3n", "Gemma 4")
ALL_ISAS = ("amx", "avx512vnni", "avx512", "avx2vnni", "avx2", "avx512tiles", "avx2x16", "avx2dot", "plain")
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

Folder = Callable[[str, str], Path]


@pytest.mark.parametrize(("weights", "precision", "cache"), QUICK)
def test_formats_and_precisions(weights: str, precision: str, cache: str) -> None:
    case = Case("Llama", weights, precision, cache, loader.active_isa())
    prove(case.runner(build_model(LLAMA, weights)), random_text(LLAMA.vocab_size, 150), 6)


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_instruction_sets(isa: str) -> None:
    with usable(isa):
        runner = Case("Llama", "int8", "default", "u8", isa).runner(build_model(LLAMA, "int8"))
        prove(runner, random_text(LLAMA.vocab_size, 90), 3)


@pytest.fixture(scope="session")
def exported(make_once: MakeOnce) -> Folder:
    """A tiny family in a weight format."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

    def get(name: str, weights: str) -> Path:
        group = {"group_size": -1 if name in NARROW else 32} if weights == "int4" else {}
        made = make_once(f"{name} in {weights}", lambda folder: export_tiny(name, folder, weights, **group))
        return made / "ir"

    return get


def usable(isa: str) -> AbstractContextManager[None]:
    """The instruction set, or a skip with the reason."""
    if isa not in (*loader.available_isas(), *loader.isas_for_tests()):
        pytest.skip(f"this processor lacks {isa}, or the library does not hold it")
    return instruction_set(isa)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("family", "weights", "precision", "cache"),
    [(family, *formats) for family in FAMILIES for formats in formats_of(family)],
)
def test_families(family: str, weights: str, precision: str, cache: str, exported: Folder) -> None:
    """Every instruction set that this processor can run or emulate."""
    for isa in (*loader.available_isas(), *loader.isas_for_tests()):
        case = Case(family, weights, precision, cache, isa)
        if case.computed != case:
            pytest.skip(f"the same graph as {case.computed}")
        with instruction_set(isa):
            try:
                runner = case.runner(exported(family, weights))
            except ValueError as error:
                if f"KV_CACHE_PRECISION={cache}" not in str(error):
                    raise
                pytest.skip(str(error))
            if any("linear attention" in reason for reason in runner.identity_breakers):
                pytest.skip("the plugin rounds the states that it keeps")
            if family in STOCK_EXPERTS:
                (reason,) = runner.identity_breakers
                assert "experts='native' does not know their form" in reason
                pytest.skip(reason)
            assert runner.identity_breakers == ()
            prove(runner, text_of(case), SPLITS, 80)


@pytest.mark.parametrize(
    "properties",
    [{"KV_CACHE_PRECISION": "u8"}, pytest.param(F32, marks=pytest.mark.sweep)],
    ids=["u8", "f32"],
)
def test_demo_target_with_one_thread_and_two(properties: dict[str, str]) -> None:
    text = random_text(4096, 130)
    references = []
    for threads in (1, 2):
        settings = {**properties, "INFERENCE_NUM_THREADS": threads}
        runner = ModelRunner(demo_pair_path(), properties=settings)
        references.append(prove(runner, text, 4).reference.outputs["logits"])
    assert np.array_equal(references[0].view(np.uint32), references[1].view(np.uint32))


def test_the_proof_finds_stock_attention() -> None:
    """A path that is known to follow the rows of a pass is found, and named with its reason."""
    stock = AttentionConfig(backend="stock")
    runner = ModelRunner(
        build_model(LLAMA, "int8"), attention=stock, linear="native", properties=F32, watch=True
    )
    proof = RowProof(runner, random_text(LLAMA.vocab_size, 100))
    found = [proof.difference(seed) for seed in range(4)]
    first = next(difference for difference in found if difference is not None)
    assert first.operation is not None and "PagedAttention" in first.operation
    assert any(reason.startswith("attention='stock'") for reason in runner.identity_breakers)
