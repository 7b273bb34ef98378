"""ModelRunner with experts of its own: which passes are limited, what they read, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from settings import F32
from transforms.moe_models import EXPERTS, LAYERS, TOP_K, tiny_moe

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_transforms import moe_layers

EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
PROMPT, DRAFT = np.arange(40) % 96, np.array([7, 3, 50, 21, 90])


def make_runner(experts: ExpertConfig | None, attention: str = "native") -> ModelRunner:
    return ModelRunner(tiny_moe(), "CPU", AttentionConfig(attention), EXACT, experts=experts)


def verify(runner: ModelRunner, limited: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """Logits of five rows behind a prompt, and the experts that each layer read for them."""
    sequence = CachedSequence()
    runner.prefill(sequence, PROMPT, chunk=512)
    result = runner.forward([Rows(sequence, DRAFT, sampled=5, limits_experts=limited)])
    runner.release(sequence)
    return result.logits.copy(), result.stats.experts_read


@pytest.mark.parametrize("backend", ["native", "stock"])
def test_a_pass_that_is_not_limited_computes_what_stock_does(backend: Any) -> None:
    expected, read = verify(make_runner(None), False)
    assert read == ()
    runner = make_runner(ExpertConfig(backend, TOP_K))
    got, _ = verify(runner, False)
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    limited, read = verify(runner, True)
    assert np.abs(limited - expected).max() > 1e-3 * np.abs(expected).max()
    assert len(read) == LAYERS


def test_both_backends_limit_alike() -> None:
    results = [verify(make_runner(ExpertConfig(name, (TOP_K, 5))), True) for name in ("native", "stock")]
    (ours, read), (stock, read_stock) = results
    assert np.abs(ours - stock).max() <= 2e-4 * np.abs(stock).max()
    assert read == read_stock


def test_prompt_beside_a_verification_is_left_alone() -> None:
    runner = make_runner(ExpertConfig("native", TOP_K))
    alone = CachedSequence()
    expected = runner.forward([Rows(alone, PROMPT)]).logits.copy()
    old, new = CachedSequence(), CachedSequence()
    runner.prefill(old, PROMPT[:9], chunk=512)
    mixed = runner.forward([Rows(old, DRAFT, limits_experts=True), Rows(new, PROMPT)]).logits
    assert np.abs(mixed[1:] - expected).max() <= 1e-4 * np.abs(expected).max()


def test_experts_without_a_budget() -> None:
    runner = make_runner(ExpertConfig())
    expected, _ = verify(make_runner(None, "stock"), False)
    got, read = verify(runner, False)
    assert read == ()
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    assert {report.name: report.count for report in runner.reports}["SparseMoE"] == LAYERS


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="experts='gpu': expected 'native' or 'stock'"):
        ExpertConfig("gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (TOP_K - 1, "expert budget 2 is out of range"),
        (EXPERTS + 1, "expert budget 9 is out of range"),
        ((4, 4, 4), "expert budget holds 3 values, expected 2"),
    ],
)
def test_a_budget_that_does_not_fit_the_model_is_refused(budget: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpertConfig("native", budget).transform(tiny_moe())


def test_native_experts_off_the_cpu_are_refused() -> None:
    with pytest.raises(ValueError, match="native experts run on CPU only"):
        ModelRunner(tiny_moe(), "GPU", AttentionConfig("stock"), experts=ExpertConfig())


@pytest.mark.parametrize("budget", [TOP_K - 1, EXPERTS + 1])
def test_a_budget_out_of_range_is_refused_with_the_layer(budget: int) -> None:
    layers = moe_layers(tiny_moe())
    with pytest.raises(ValueError, match="expected 3 to 8 ") as error:
        ExpertConfig("native", budget).check(layers)
    assert layers[0].name in str(error.value)


@pytest.mark.parametrize("budget", [-1, TOP_K, EXPERTS])
def test_a_budget_within_range_is_taken(budget: int) -> None:
    ExpertConfig("native", budget).check(moe_layers(tiny_moe()))
