"""`ovspec bench decode` on a tiny shape: that every mode follows the trace, not how fast anything is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.decode import MODES
from ovspec.cli import cli
from ovspec_models import demo_pair_path

TINY = ["--shape", "qwen3-0.6b", "--layers", "2", "--vocab-size", "256", "--weight-format", "fp32"]
SMALL = [*TINY, "--context", "300", "--budget", "96", "--draft-budget", "64", "--repeat", "1"]
NEW_TOKENS = 41


@dataclass(frozen=True)
class Outcome:
    stdout: str
    json: dict[str, Any]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("decode")
    AcceptanceTrace("a test", [4, 3], [2, 3], [11]).save(folder / "trace.json")
    arguments = [*SMALL, "--mode", ",".join(MODES), "--max-new-tokens", str(NEW_TOKENS)]
    arguments += ["--acceptance", str(folder / "trace.json"), "--json", str(folder / "figures.json")]
    result = CliRunner().invoke(cli, ["bench", "decode", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Outcome(result.stdout, json.loads((folder / "figures.json").read_text()))


def test_every_mode_has_its_rounds_and_its_ratios(outcome: Outcome) -> None:
    modes = outcome.json["modes"]
    assert list(modes) == list(MODES)
    for mode in modes.values():
        assert len(mode["rounds"]) == 1
        assert mode["rounds"][0]["tokens_per_second"] > 0
        assert mode.keys() >= {"over_stock_plain", "over_stock_speculative", "lossy"}
    assert modes["stock_plain"]["over_stock_plain"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert [name for name, mode in modes.items() if mode["lossy"]] == ["sparse"]


def test_drafting_modes_accept_what_the_trace_says(outcome: Outcome) -> None:
    # Drafts of 4 and 3 in turn, of which 2 and 3 stand: 3 and 4 tokens a pass. 40 tokens after the first are
    # 5 rounds of 7 and a pass of 3, and a last pass whose draft is cut to the one token that is left.
    for mode in ("stock_speculative", "dense", "sparse"):
        found = outcome.json["modes"][mode]["rounds"][0]["tokens_per_pass"]
        assert found == pytest.approx(1 + (5 * (2 + 3) + 2 + 1) / 12)
    for mode in ("stock_plain", "plain"):
        assert outcome.json["modes"][mode]["rounds"][0]["tokens_per_pass"] == 1.0


@pytest.mark.slow
def test_trees_accept_what_the_trace_says(tmp_path: Path) -> None:
    """On stock attention, ours and with commits; a tree of another size costs rows and yields the same."""
    figures = tmp_path / "figures.json"
    modes = ["stock_speculative", "dense", "sparse", "commit", "sparse_self"]
    arguments = [
        *SMALL,
        "--mode",
        ",".join(modes),
        "--max-new-tokens",
        str(NEW_TOKENS),
        "--json",
        str(figures),
    ]
    arguments += ["--acceptance", "synthetic:2/3x9"]
    result = CliRunner().invoke(cli, ["bench", "decode", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())["modes"]
    # 40 tokens after the first: 13 passes of 3, and one more token, for which nothing is drafted.
    passes = {mode: found[mode]["rounds"][0]["tokens_per_pass"] for mode in modes[:3]}
    assert passes == dict.fromkeys(modes[:3], 3.0)


def test_commits_happen_and_read_more_than_sparse_passes(outcome: Outcome) -> None:
    modes = {name: mode["rounds"][0] for name, mode in outcome.json["modes"].items()}
    assert modes["commit"]["commits"] >= 2
    assert modes["commit"]["commit_ms"] > 0
    assert modes["sparse"]["commits"] == 0
    assert modes["sparse"]["density"] < modes["commit"]["density"] < 1.0
    assert modes["dense"]["density"] == 1.0


def test_self_drafting_spends_time_in_the_target(outcome: Outcome) -> None:
    modes = {name: mode["rounds"][0] for name, mode in outcome.json["modes"].items()}
    assert modes["sparse_self"]["draft_ms"] > modes["dense"]["draft_ms"] > 0


def test_output_says_that_a_trace_decides_and_what_is_lossy(outcome: Outcome) -> None:
    assert "a trace decides which drafts are accepted" in outcome.stdout
    assert "trace.json: a test" in outcome.stdout
    assert "sparse (LOSSY)" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "context", "budget"),
    [
        pytest.param([*TINY, "--context", "48"], 48, 6, id="a short context"),
        pytest.param(["--model", str(demo_pair_path())], 8192 - 2, 8190 // 8, id="few positions"),
    ],
)
def test_the_defaults_go_with_the_context_and_the_model(
    arguments: list[str], context: int, budget: int, tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    arguments = [*arguments, "--max-new-tokens", "2", "--repeat", "1", "--json", str(figures)]
    result = CliRunner().invoke(cli, ["bench", "decode", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())
    assert (found["context"], found["budget"]) == (context, budget)
    assert list(found["modes"]) == ["stock_plain", "stock_speculative", "dense", "commit"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--acceptance", "synthetic:9"], "expected synthetic:A/N"),
        (["--mode", "commit,fast"], "expected some of stock_plain"),
        (["--context", "0"], "--context 0: expected at least 1"),
        (["--context", "40950"], "positions; with 128 new tokens give at most"),
        (["--max-new-tokens", "1"], "--max-new-tokens 1: expected at least 2"),
        (["--budget", "4096"], "nothing to commit"),
        (["--commit-interval", "64"], "interval=64"),
        (["--json", "missing/f.json"], "--json missing/f.json: the folder missing"),
    ],
)
def test_bad_input_is_refused_before_the_work(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["bench", "decode", *SMALL, *arguments])
    assert isinstance(result.exception, ValueError)
    assert expected in str(result.exception)
    assert list(tmp_path.iterdir()) == []
