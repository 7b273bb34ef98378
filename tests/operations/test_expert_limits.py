"""Expert budgets as a user sets them: which passes they hold in, what comes out, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prompts import STORY
from settings import F32
from tiers import by_tier
from transforms.moe_models import EXPERTS, LAYERS, TOP_K

import ovspec
from ovspec import CommitVerify, LLMPipeline, SparseVerify
from ovspec.cli import cli
from ovspec.drafters import SparseSelf
from ovspec.modes.row_limits import ReadLimits
from ovspec.modes.verify_mode import calibrated
from ovspec_models import ModelSection, OvspecConfig

EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
LIMITED = SparseVerify(expert_budget=TOP_K)
Make = Callable[..., LLMPipeline]


@pytest.fixture(scope="module")
def make(moe_ir: Path) -> Make:
    def pipeline(**settings: Any) -> LLMPipeline:
        return LLMPipeline(moe_ir, "CPU", **{"drafter": "none", **EXACT, **settings})

    return pipeline


class Echo:
    """Drafts the last tokens again: always something, hardly ever right."""

    def propose(self, context: list[int], k: int) -> tuple[list[int], None, None]:
        return list(context[-k:]), None, None


def answer(pipeline: LLMPipeline, **settings: Any) -> tuple[str, ovspec.PerfMetrics]:
    if pipeline.drafts:
        settings["num_assistant_tokens"] = 4
    results = pipeline.generate([STORY], max_new_tokens=24, ignore_eos=True, **settings)
    return results.texts[0], results.perf_metrics


@pytest.fixture(scope="module")
def plain(make: Make) -> str:
    return answer(make(attention="stock"))[0]


@pytest.mark.parametrize("experts", by_tier(["native", "stock"], ["native"]))
def test_committed_and_self_drafted_text_is_that_of_plain_decoding(
    make: Make, plain: str, experts: str
) -> None:
    """With experts limited where tokens are provisional, and attention dense, sparse or not there."""
    both = SparseVerify(expert_budget=TOP_K, budget=64)
    for verify in (CommitVerify(LIMITED, 8), CommitVerify(both, 8)):
        text, metrics = answer(make(verify=verify, experts=experts, drafter=Echo()))
        assert text == plain
        assert metrics.get_num_commits() > 0 and not metrics.why_lossy
        assert TOP_K <= metrics.get_experts_read() <= EXPERTS
    pipeline = make(drafter=SparseSelf(LIMITED), experts=experts)
    text, metrics = answer(pipeline)
    assert text == plain and metrics.raw_metrics.num_drafts > 0


def test_native_experts_are_the_default_and_change_nothing(make: Make, plain: str) -> None:
    pipeline = make()
    assert [report.count for report in pipeline.runner.reports if report.name == "SparseMoE"] == [LAYERS]
    assert answer(pipeline)[0] == plain
    stock = make(experts="stock")
    assert not any(report.name == "SparseMoE" for report in stock.runner.reports)
    assert answer(stock)[0] == plain


def test_sparse_passes_keep_to_the_budget_and_say_so(make: Make, plain: str) -> None:
    _, free = answer(make(verify=SparseVerify(expert_budget=EXPERTS), drafter=Echo()))
    _, metrics = answer(make(verify=LIMITED, drafter=Echo()))
    assert metrics.why_lossy == "sparse verification approximates the model (experts)"
    assert metrics.get_attention_density() == 1.0
    # Every row's first expert is kept, so that several rows may read more than the budget.
    assert TOP_K <= metrics.get_experts_read() < free.get_experts_read() <= EXPERTS
    assert metrics.get_expert_density() == pytest.approx(metrics.get_experts_read() / EXPERTS)
    assert metrics.summary()["experts_read"] == metrics.get_experts_read()
    _, both = answer(make(verify=SparseVerify(expert_budget=TOP_K, budget=64), drafter=Echo()))
    assert both.why_lossy == "sparse verification approximates the model (attention, experts)"
    assert both.get_attention_density() < 1.0 and both.get_experts_read() < EXPERTS


def test_budget_is_set_anew_without_another_model(make: Make, plain: str) -> None:
    pipeline = make(verify=LIMITED)
    runner = pipeline.runner
    tight = answer(pipeline)[0]
    pipeline.verify = SparseVerify(expert_budget=(EXPERTS, EXPERTS))
    text, metrics = answer(pipeline)
    assert text == plain and metrics.get_experts_read() == TOP_K
    pipeline.verify = "dense"
    assert answer(pipeline)[0] == plain
    pipeline.verify = LIMITED
    # One row reads no more than its top-k.
    assert answer(pipeline)[0] == tight == plain
    assert pipeline.runner is runner
    with pytest.raises(ValueError, match="expert budget 9 is out of range"):
        pipeline.verify = SparseVerify(expert_budget=EXPERTS + 1)
    assert pipeline.verify == LIMITED
    with pytest.raises(ValueError, match="this pipeline's graph has no expert budgets; make another"):
        make().verify = LIMITED


def test_what_does_not_fit_the_model_is_refused(make: Make, demo_ir: Path) -> None:
    for budget in (TOP_K - 1, EXPERTS + 1, 10**20):
        with pytest.raises(ValueError, match=r"expert budget \d+ is out of range"):
            make(verify=SparseVerify(expert_budget=budget))
    with pytest.raises(ValueError, match="expert budget 4: this model has no routed experts"):
        LLMPipeline(demo_ir, "CPU", verify=SparseVerify(expert_budget=4))
    with pytest.raises(ValueError, match="experts='gpu': expected 'native' or 'stock'"):
        make(experts="gpu")
    with pytest.raises(ValueError, match="expert budget 3 of verify and 4 of the drafter"):
        make(verify=LIMITED, drafter=SparseSelf(SparseVerify(expert_budget=4)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expert_budget": 1.5}, "expert_budget=1.5: expected a number of experts, or -1"),
        ({"expert_budget": (4, -2)}, "expert_budget=-2: expected"),
    ],
)
def test_bad_expert_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SparseVerify(**settings)
    assert "\n" not in str(caught.value)


def test_parts_are_their_own() -> None:
    assert SparseVerify().parts == ("attention",)
    assert SparseVerify(expert_budget=8).parts == ("experts",)
    assert SparseVerify(expert_budget=-1).parts == ("attention",)
    assert SparseVerify(expert_budget=8, rule="paper").parts == ("attention", "experts")
    assert ReadLimits.of(SparseVerify(expert_budget=8), 100_000, 32).blocks == -1


def test_calibrated_values_fill_the_parts_left_open() -> None:
    model = ModelSection("x", "qwen3_moe", "int8", 2, 4, 2, 32, 96, 128)
    experts = {"expert_budget": [8, -1]}
    config = OvspecConfig(model, verify=SparseVerify(**experts))
    assert calibrated(SparseVerify(), config) == SparseVerify(expert_budget=(8, -1))
    mine = calibrated(SparseVerify(budget=64), config)
    assert mine == SparseVerify(budget=64, expert_budget=(8, -1))
    given = SparseVerify(expert_budget=2)
    assert calibrated(given, config) == given
    anchors = OvspecConfig(model, verify=SparseVerify(anchor_layers=[0], rule="paper", **experts))
    # Anchor layers alone do not limit attention.
    assert calibrated(given, anchors) == given
    whole = OvspecConfig(model, verify=SparseVerify(anchor_layers=[0], coverage=0.9, **experts))
    assert calibrated(given, whole).parts == ("attention", "experts")
    assert calibrated(SparseVerify(expert_budget=-1, coverage=0.8), whole).parts == ("attention",)


def command(folder: Path, *arguments: str) -> Result:
    base = ["generate", "-m", str(folder), "-p", STORY, "--max-new-tokens", "4", "--ignore-eos"]
    properties = [f"--property={name}={value}" for name, value in EXACT.items()]
    return CliRunner().invoke(cli, [*base, *properties, *arguments])


def test_command_says_what_was_read(moe_ir: Path) -> None:
    limits = ("--verify", "sparse", "--expert-budget", f"{TOP_K},{TOP_K + 1}", "--drafter", "none")
    run = command(moe_ir, *limits, "--json")
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert report["metrics"]["experts_read"] == TOP_K and report["lossless"] is False
    assert report["metrics"]["why_lossy"] == "sparse verification approximates the model (experts)"
    run = command(moe_ir, *limits)
    assert (
        f"{TOP_K}.0 experts a layer read, density {TOP_K / EXPERTS:.2f}" in run.stderr
        and "LOSSY" in run.stderr
    )
    run = command(moe_ir, "--expert-budget", "4")
    assert isinstance(run.exception, ValueError)
    assert "--expert-budget 4 contradicts --verify dense" in str(run.exception)
