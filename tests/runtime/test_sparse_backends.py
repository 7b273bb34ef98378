"""Sparse verification in whole generations, with our operations and with stock ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ops.compare import assert_close
from prompts import STORY
from runtime.selection_life import passes
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.runtime.attention_config import Attention, AttentionConfig
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import Selection

MakePipeline = Callable[..., ovspec.LLMPipeline]
BACKENDS: tuple[Attention, ...] = ("native", "stock")
# Of different lengths, so that a wrong table shows.
PROMPTS = [STORY, STORY[: len(STORY) // 2], STORY[200:]]
ONE_KV_HEAD = replace(
    get_shape("qwen3-0.6b", layers=4), hidden_size=64, intermediate_size=96, num_attention_heads=4,
    num_key_value_heads=1, head_dim=32, vocab_size=4096,
)  # fmt: skip


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


REUSED = {
    "budget": ovspec.SparseVerify(budget=96, refresh_interval=3),
    "coverage": ovspec.SparseVerify(coverage=0.5, query="union", summary="min_max", refresh_interval=2),
}


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
    pipeline = make_pipeline(draft=True, verify=REUSED[rule], attention=backend)
    together = texts(pipeline, PROMPTS)
    assert [texts(pipeline, [prompt])[0] for prompt in reversed(PROMPTS)] == together[::-1]
    metrics = pipeline.generate(PROMPTS[:1], max_new_tokens=24).perf_metrics
    assert 0.0 < metrics.get_attention_density() < 0.95


@pytest.mark.parametrize(
    ("selection", "coverage"),
    [
        (Selection(), 1.0),
        (Selection("union", "min_max", 2, 2), 1.0),
        (Selection(refresh_interval=3), 0.7),
    ],
    ids=["paper", "union", "coverage and reuse"],
)
def test_backends_agree_on_one_kv_head(selection: Selection, coverage: float) -> None:
    """There the sum over KV heads is the head's own score, and the rules are the same.

    Rollbacks stay within what the stock backend holds of keys; after a longer one it keeps one block more.
    """
    life = [
        *[{"a": (70, -1, 0)}] * 4,
        {"a": (6, 5, 0)},
        {"a": (6, 5, 5)},
        {"b": (300, -1, 0)},
        {"a": (1, 6, 0), "b": (8, 4, 3)},
        {"b": (5, 7, 4), "a": (33, 6, 32)},
        {"b": (64, 9, 60), "a": (3, 7, 1)},
        {"b": (7, 8, 0), "a": (4, 6, 2), "c": (100, -1, 0)},
        {"a": None},
        {"d": (230, -1, 0), "c": (9, 3, 4)},
        {"d": (5, 5, 2), "c": (9, 3, 0), "b": (2, 6, 0)},
    ]
    model = build_model(ONE_KV_HEAD, "fp32")
    runners = [
        ModelRunner(model.clone(), "CPU", AttentionConfig(backend, True, (0, 2), selection, coverage), F32)
        for backend in BACKENDS
    ]
    selected = 0
    for number, (native, stock) in enumerate(zip(*[passes(runner, life) for runner in runners], strict=True)):
        counts = native.seen["selected_counts"]
        blocks = [len(table) for table in native.tables["physical_tables"]]
        expected = np.where(counts < 0, np.array(blocks), counts)
        if coverage < 1.0:  # else the host knows the counts, and the pass attends to so many tokens
            np.testing.assert_array_equal(stock.seen["selected_counts"], expected, err_msg=f"pass {number}")
        assert_close(f"pass {number}", native.logits, stock.logits, 1e-4)
        assert stock.stats.attended_tokens == native.stats.attended_tokens
        selected += int((counts >= 0).sum())
    assert selected > 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_lists_end_with_their_interval_or_the_draft(make_pipeline: MakePipeline, backend: Attention) -> None:
    runner = ModelRunner(
        build_model(ONE_KV_HEAD, "fp32"),
        "CPU",
        AttentionConfig(backend, True, (0, 2), Selection(refresh_interval=3)),
        F32,
    )
    cached = CachedSequence()
    rng = np.random.default_rng(0)

    def age_after(rows: int, budget: int, back: int) -> int | None:
        runner.forward([Rows(cached, rng.integers(2, 4096, rows), 1, budget)])
        cached.rollback(cached.length - back)
        return cached.list_age

    assert age_after(400, -1, 0) is None, "a prefill has no list"
    assert [age_after(5, 6, 0) for _ in range(4)] == [1, 2, 3, 1]
    assert age_after(5, 6, 3) == 2, "one draft token was accepted"
    assert age_after(5, 6, 4) is None, "none was"
    assert age_after(1, 6, 0) == 1
    assert age_after(1, 6, 0) == 2, "nothing was drafted, and nothing rejected"
    assert age_after(5, -1, 0) is None, "a dense pass knows no list"
    assert age_after(5, 6, 0) == 1
    assert age_after(5, 1000, 0) is None, "its budget covers everything"
    assert age_after(5, 6, 0) == 1
    assert age_after(1, 6, 60) is None, "as when a chat changes its history"
    runner.release(cached)
    assert cached.list_age is None and cached.held_keys.end == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chat_that_changes_its_history(make_pipeline: MakePipeline, backend: Attention) -> None:
    """Turns roll the cache back further than any draft, into the middle of a block."""
    sparse = ovspec.SparseVerify(budget=96, refresh_interval=2)
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
    drafter = ovspec.drafters.SparseSelf(ovspec.SparseVerify(budget=64, query="union"))
    for sparse, message in (
        (ovspec.SparseVerify(query="last"), "query=last of verify and union of the drafter differ"),
        (ovspec.SparseVerify(coverage=0.5), "coverage=0.5 of verify and None of the drafter differ"),
    ):
        with pytest.raises(ValueError, match=message):
            ovspec.LLMPipeline(demo_ir, drafter=drafter, verify=sparse, **F32)
