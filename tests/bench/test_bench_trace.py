"""`ovspec bench trace` on the demo pair, and that the trace is what its drafts did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.record import _add_commits
from ovspec.cli import cli
from ovspec.generation.raw_metrics import RawPerfMetrics

F32 = ["--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in ("One day, a girl", "The dog ran")))
    return path


def test_trace_of_the_demo_pair(demo_ir: Path, prompts: Path) -> None:
    path = prompts.with_name("trace.json")
    arguments = ["-m", str(demo_ir), "--prompts", str(prompts), "--max-new-tokens", "24", "-o", str(path)]
    arguments += ["--verify", "commit", "--budget", "64", "--num-assistant-tokens", "3", *F32]
    result = CliRunner().invoke(cli, ["bench", "trace", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    trace = AcceptanceTrace.load(path)
    assert max(trace.proposed) == 3
    assert 0 < sum(trace.accepted) < sum(trace.proposed)
    assert (
        f"{len(trace.proposed)} drafts, {trace.tokens_per_pass():.2f} tokens a verification" in result.output
    )


def test_prompts_are_read_as_asked(demo_ir: Path, prompts: Path) -> None:
    path = prompts.with_name("trace.json")
    arguments = ["-m", str(demo_ir), "--prompts", str(prompts), "--max-new-tokens", "8", "-o", str(path)]
    arguments += ["--prefill", "sparse", *F32]
    commit = CliRunner().invoke(cli, ["bench", "trace", *arguments, "--verify", "commit"])
    assert "the cache of a sparse prompt is not the dense one" in str(commit.exception)
    assert CliRunner().invoke(cli, ["bench", "trace", *arguments]).exit_code == 0
    assert "dense, sparse prefill, 2 prompts" in AcceptanceTrace.load(path).source


def test_corrections_end_runs_of_confirmed_tokens() -> None:
    confirmed = [0]
    _add_commits(RawPerfMetrics(provisional_lengths=[16, 24], confirmed_lengths=[16, 5]), confirmed)
    _add_commits(RawPerfMetrics(provisional_lengths=[16, 3], confirmed_lengths=[0, 3]), confirmed)
    assert confirmed == [21, 0, 3]


def test_no_drafter_is_refused(demo_ir: Path, prompts: Path, tmp_path: Path) -> None:
    arguments = ["-m", str(demo_ir), "--prompts", str(prompts), "-o", str(tmp_path / "t.json")]
    result = CliRunner().invoke(cli, ["bench", "trace", *arguments, "--drafter", "none"])
    assert isinstance(result.exception, ValueError)
    assert "a trace needs drafts" in str(result.exception)
