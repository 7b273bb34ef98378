"""`ovspec bench` on a mixture of experts: the experts it reads, and its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import ovspec_ops
from ovspec.cli import cli
from ovspec_ops.common.byte_values import ISAS

SHAPE = ("--shape", "qwen3-moe-64x8", "--layers", "1", "--vocab-size", "256")


@pytest.mark.slow
def test_budget_holds_in_sparse_passes_alone(
    bench_verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SHAPE, "--context", "64", "--tokens", "4", "--repeat", "2", "--expert-budget", "9"]
    assert bench_verify(*arguments, "--backend", "stock,dense,sparse,sparse_stock") == 0
    shown = capsys.readouterr().out
    assert "sparse is LOSSY" in shown and "9 experts of a layer" in shown


def test_json_counts_experts(bench_verify: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SHAPE, "--context", "64", "--tokens", "4", "--repeat", "1"]
    rule = ["--expert-budget", "8"]
    assert bench_verify(*arguments, *rule, "--json", "-") == 0
    figures = json.loads(capsys.readouterr().out)
    read = {record["backend"]: record["experts_read"] for record in figures["records"]}
    assert read["stock"] is None and read["sparse"] <= 8 < read["dense"] <= 32
    assert figures["expert_budget"] == 8


def test_generations_with_a_budget() -> None:
    arguments = ["bench", "decode", *SHAPE, "--context", "64", "--budget", "100", "--max-new-tokens", "6"]
    limits = ["--mode", "dense,commit,sparse_self", "--repeat", "1", "--expert-budget", "8"]
    run = CliRunner().invoke(
        cli, [*arguments, *limits, "--draft-budget", "32", "--commit-interval", "4", "--json", "-"]
    )
    assert run.exit_code == 0, run.output
    figures = json.loads(run.stdout)
    # The context is within attention's budget: what is left to commit are the limited experts.
    assert figures["modes"]["commit"]["rounds"][0]["commits"] > 0
    assert figures["expert_budget"] == 8


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("7", "expert budget 7 is out of range"),
        ("65", "expert budget 65 is out of range"),
        ("8,9", "expert budget holds 2 values, expected 1"),
        ("many", "--expert-budget 'many': expected whole numbers separated by commas"),
    ],
)
def test_bad_budgets_are_one_line(
    bench_verify: Callable[..., int], capsys: pytest.CaptureFixture[str], budget: str, message: str
) -> None:
    arguments = [*SHAPE, "--context", "64", "--tokens", "2", "--expert-budget", budget]
    assert bench_verify(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_budget_of_a_dense_model(
    bench_verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--shape", "qwen3-0.6b", "--layers", "1", "--vocab-size", "256", "--expert-budget", "8"]
    assert bench_verify(*arguments, "--context", "64", "--tokens", "2") == 2
    assert "expert budget 8: this model has no routed experts" in capsys.readouterr().err


def test_channels_of_a_dense_model(
    bench_verify: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--shape", "qwen3-0.6b", "--layers", "1", "--vocab-size", "256", "--ffn-density", "0.5"]
    passes = ["--context", "64", "--tokens", "3", "--repeat", "1"]
    assert bench_verify(*arguments, *passes, "--json", str(tmp_path / "figures.json")) == 0
    text, figures = capsys.readouterr().out, json.loads((tmp_path / "figures.json").read_text("utf-8"))
    bits = {backend: found["row_bits"] for backend, found in figures["precisions"].items()}
    ours = 8 if ovspec_ops.active_isa() in ISAS else 16
    assert bits == {"stock": None, "dense": ours, "sparse": ours}
    assert text.count(f"rows of {ours} bits") == text.count("rows of ") == 2
    read = {record["backend"]: record["ffn_density"] for record in figures["records"]}
    assert read == {"stock": None, "dense": 1.0, "sparse": 0.5} and figures["ffn_density"] == 0.5
    assert bench_verify(*arguments, *passes, "--backend", "sparse_stock") == 2
    assert "only our operation limits channels" in capsys.readouterr().err
