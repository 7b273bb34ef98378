"""Sparse verification in whole generations, with our operations and with stock ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prompts import STORY
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_transforms import Selection

MakePipeline = Callable[..., ovspec.LLMPipeline]
BACKENDS: tuple[Attention, ...] = ("native", "stock")
# Of different lengths, so that a wrong table shows.
PROMPTS = [STORY, STORY[: len(STORY) // 2], STORY[200:]]


def texts(pipeline: ovspec.LLMPipeline, prompts: list[str], tokens: int = 24) -> list[str]:
    # Sparse text depends on where drafts end, which a schedule would decide for all sequences together.
    settings = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant", "ignore_eos": True}
    return list(pipeline.generate(prompts, max_new_tokens=tokens, **settings).texts)


@pytest.mark.parametrize("backend", by_tier(BACKENDS, ["stock"]))
@pytest.mark.parametrize(
    "everything",
    by_tier([{"budget": 100_000}, {"coverage": 1.0}, {"L0": 0, "rho": 1.0}], [{"coverage": 1.0}]),
)
def test_a_budget_that_covers_everything_is_dense(
    make_pipeline: MakePipeline, backend: Attention, everything: dict[str, Any]
) -> None:
    sparse = make_pipeline(draft=True, verify=ovspec.SparseVerify(**everything), attention=backend)
    dense = make_pipeline(draft=True)
    results = sparse.generate(PROMPTS[:2], max_new_tokens=24)
    assert list(results.texts) == list(dense.generate(PROMPTS[:2], max_new_tokens=24).texts)
    assert results.perf_metrics.get_attention_density() == 1.0


LIMITED = {"budget": ovspec.SparseVerify(budget=96), "coverage": ovspec.SparseVerify(coverage=0.5)}


# Stock operations sum in an order that follows the rows of a pass: there a coverage may fall to either side.
@pytest.mark.parametrize(
    ("backend", "rule"),
    [
        ("native", "coverage"),
        pytest.param("native", "budget", marks=pytest.mark.slow),
        pytest.param("stock", "budget", marks=pytest.mark.slow),
    ],
)
def test_sequences_do_not_meet(make_pipeline: MakePipeline, backend: Attention, rule: str) -> None:
    """Sequences in one pass, also in blocks that others have freed, get the text that each gets alone."""
    pipeline = make_pipeline(draft=True, verify=LIMITED[rule], attention=backend)
    together = texts(pipeline, PROMPTS)
    assert [texts(pipeline, [prompt])[0] for prompt in reversed(PROMPTS)] == together[::-1]
    metrics = pipeline.generate(PROMPTS[:1], max_new_tokens=24).perf_metrics
    assert 0.0 < metrics.get_attention_density() < 0.95


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chat_that_changes_its_history(make_pipeline: MakePipeline, backend: Attention) -> None:
    """Turns roll the cache back further than any draft, into the middle of a block."""
    sparse = ovspec.SparseVerify(budget=96)
    pipeline = make_pipeline(draft=True, verify=sparse, attention=backend)
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    pipeline.get_tokenizer().set_chat_template(template)
    try:
        pipeline.start_chat(STORY)
        for turn in ("One day", "Then she", "In the end"):
            assert pipeline.generate(turn, max_new_tokens=20)
    finally:
        pipeline.finish_chat()
        pipeline.get_tokenizer().set_chat_template("")


def test_rules_of_verifier_and_drafter_must_fit(make_pipeline: MakePipeline, demo_ir: Any) -> None:
    drafter = ovspec.drafters.SparseSelf(ovspec.SparseVerify(budget=64, rule="paper"))
    for sparse, message in (
        (ovspec.SparseVerify(rule="mass"), "rule=mass of verify and paper of the drafter differ"),
        (ovspec.SparseVerify(coverage=0.5), "coverage=0.5 of verify and None of the drafter differ"),
    ):
        with pytest.raises(ValueError, match=message):
            ovspec.LLMPipeline(demo_ir, drafter=drafter, verify=sparse, **F32)


def test_stock_operations_take_the_papers_rule_and_say_so(make_pipeline: MakePipeline, demo_ir: Any) -> None:
    pipeline = make_pipeline(draft=True, verify="sparse", attention="stock")
    assert pipeline.runner.attention.selection.rule == "paper"
    with pytest.raises(ValueError, match=r"rule='mass' needs attention='native'.* or rule='paper'"):
        ovspec.LLMPipeline(demo_ir, verify=ovspec.SparseVerify(rule="mass"), attention="stock", **F32)
    with pytest.raises(ValueError, match=r"anchor_layers=\[0, 3\]: with rule='mass' every layer selects"):
        ovspec.LLMPipeline(demo_ir, verify=ovspec.SparseVerify(anchor_layers=(0, 3)), **F32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_summaries_count_and_a_list_that_saves_nothing_is_dense(demo_ir: Path, backend: Attention) -> None:
    """All blocks but one are a budget below all, until the summaries of all weigh as much as that one."""
    attention = AttentionConfig(backend, True, None, Selection("mass" if backend == "native" else "paper"))
    runner = ModelRunner(demo_ir, "CPU", attention, {"KV_CACHE_PRECISION": "u8"})
    assert runner._selection is not None
    share = runner._selection.summary_share
    assert 0.02 < share < 0.1
    rng, cached, many = np.random.default_rng(0), CachedSequence(), math.ceil(1 / share)

    def density(blocks: int, budget: int) -> float:
        context = 32 * blocks - 5
        if more := context - cached.length:
            runner.prefill(cached, rng.integers(2, 4096, more), 512)
        result = runner.forward([Rows(cached, rng.integers(2, 4096, 5), 5, budget)])
        cached.rollback(context)
        attended, whole = result.stats.attended[0]
        return attended / whole

    assert density(many - 1, many - 2) < 1.0
    assert density(many, many - 1) == 1.0
    assert density(many, 4) == pytest.approx(4 / many + share, rel=0.05)
    runner.release(cached)
