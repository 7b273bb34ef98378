"""`ovspec bench schedule` on the demo pair and a tiny shape: what it compares, not how fast anything is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from tiers import by_tier

from ovspec.bench.schedule import WORKLOADS, WorkloadRecord
from ovspec.cli import cli

TINY = ["--shape", "qwen3-0.6b", "--layers", "1", "--vocab-size", "256", "--weight-format", "fp32"]
F32 = ["--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32"]
SMALL = [*TINY, *F32, "--context", "200", "--max-new-tokens", "24", "--skip-tokens", "8", "--repeat", "2"]


@dataclass(frozen=True)
class Outcome:
    stdout: str
    json: dict[str, Any]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    path = tmp_path_factory.mktemp("schedule") / "figures.json"
    arguments = ["bench", "schedule", *SMALL, "--lengths", "0,3", "--json", str(path)]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Outcome(result.stdout, json.loads(path.read_text()))


def test_every_setting_has_its_rounds(outcome: Outcome) -> None:
    assert list(outcome.json["workloads"]) == list(WORKLOADS)
    for workload in outcome.json["workloads"].values():
        assert list(workload["tokens_per_second"]) == ["auto", "0", "3"]
        assert all(len(rates) == 2 and min(rates) > 0 for rates in workload["tokens_per_second"].values())
        assert workload["best_fixed"] in (0, 3)
        for name in ("auto_over_best_fixed", "auto_over_plain"):
            ratio = workload[name]
            assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]


def test_the_table_marks_the_best_fixed_setting(outcome: Outcome) -> None:
    assert "auto /" in outcome.stdout and "best fixed" in outcome.stdout
    assert outcome.stdout.count("*") == len(WORKLOADS)
    assert "after the first 8 of 24 tokens" in outcome.stdout
    assert "a trace decides what is accepted" in outcome.stdout


def test_cold_says_so() -> None:
    arguments = [
        "bench",
        "schedule",
        *SMALL,
        "--lengths",
        "0",
        "--workload",
        "long",
        "--repeat",
        "1",
        "--cold",
    ]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "auto begins every generation anew" in result.stdout
    assert "creative" not in result.stdout


def test_settings_of_the_same_round_are_compared() -> None:
    record = WorkloadRecord({"auto": [8.0, 3.0], "0": [4.0, 6.0], "4": [9.0, 1.0]}, [1.0, 1.0], 0)
    # Both medians are 5.0, so the first setting counts as the best. Ratios compare the same round.
    assert record.best == "0"
    assert record.ratio("auto", "0").value == pytest.approx((2.0 + 0.5) / 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workload", "long,prose"], "--workload long,prose: expected some of repetitive,creative,long"),
        (["--lengths", "1,2"], "--lengths 1,2: expected 0, which is plain decoding"),
        (["--lengths", "0,64"], "--lengths 0,64: expected 0"),
        (["--skip-tokens", "23"], "--skip-tokens 23: expected 1 to 22"),
        (["--repeat", "0"], "--repeat 0: expected at least 1"),
        (["--acceptance", "synthetic:3"], "--acceptance synthetic:3: expected synthetic:A/N"),
    ],
)
def test_refusals(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(cli, ["bench", "schedule", *SMALL, *arguments])
    assert isinstance(result.exception, ValueError)
    assert expected in str(result.exception)


def test_a_model_that_has_no_draft_needs_a_drafter() -> None:
    arguments = ["bench", "schedule", *SMALL, "--draft-model", "none", "--workload", "creative"]
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, ValueError)
    assert "give --draft-model DIR or --drafter NAME" in str(result.exception)


@pytest.mark.parametrize("drafter", by_tier(["layer_skip", "sparse_self"], ["layer_skip"]))
def test_the_target_drafts_for_itself(drafter: str) -> None:
    arguments = ["bench", "schedule", *SMALL, "--drafter", drafter, "--workload", "creative"]
    result = CliRunner().invoke(cli, [*arguments, "--lengths", "0,2"], catch_exceptions=False)
    assert result.exit_code == 0


def test_a_lookup_leaves_the_exported_draft_model_alone() -> None:
    arguments = ["bench", "schedule", *SMALL, "--drafter", "prompt_lookup", "--workload", "creative"]
    result = CliRunner().invoke(cli, [*arguments, "--lengths", "0"], catch_exceptions=False)
    assert result.exit_code == 0
