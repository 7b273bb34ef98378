"""`ovspec eval fidelity`: its output, its files, what it refuses, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prompts import PROMPTS, STORY

from ovspec.cli.options.pipeline import PipelineChoice
from ovspec.pipeline.pipeline import LLMPipeline

Command = Callable[..., int]
F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": STORY}) + "\n" + json.dumps(PROMPTS[0]) + "\n", encoding="utf-8")
    return path


def test_table_json_and_picture(
    eval_fidelity: Command,
    demo_ir: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = ("--json", tmp_path / "report.json", "--plot", tmp_path / "report.png")
    lengths = ("--budgets", "64,100000", "--max-new-tokens", "8", "--num-assistant-tokens", "3")
    assert eval_fidelity("-m", demo_ir, "--prompts", prompts, *lengths, *files, *F32) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "drafter: auto, at most 3 tokens a round; inference f32, keys f32, values f32" in captured.out
    assert "budget 64: LOSSY, sparse verification approximates the model" in captured.out
    assert {"free running", "budget 64"} <= {line.strip()[:12].strip() for line in captured.out.splitlines()}
    picture = (tmp_path / "report.png").read_bytes()
    assert picture.startswith(PNG) and len(picture) > 10_000
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    check_json(report, demo_ir)


def check_json(report: dict[str, object], demo_ir: Path) -> None:
    expected = {
        "model": str(demo_ir),
        "weight_format": "fp16",
        "drafter": "auto",
        "draft_model": str(demo_ir / "draft"),
        "num_assistant_tokens": 3,
        "max_new_tokens": 8,
        "context": None,
        "low_margin": 0.1,
        "precisions": {"inference": "f32", "key_cache": "f32", "value_cache": "f32"},
    }
    assert {name: report[name] for name in expected} == expected
    assert set(report) - set(expected) == {"versions", "processor", "reference", "settings"}
    reference = report["reference"]
    assert isinstance(reference, dict)
    assert reference["verify"] == "dense" and len(reference["prompts"]) == 2
    assert [entry["num_generated_tokens"] for entry in reference["prompts"]] == [8, 8]
    settings = report["settings"]
    assert isinstance(settings, list)
    tight, everything = settings
    assert (tight["name"], everything["name"]) == ("budget 64", "budget 100000")
    assert tight["lossless"] is False and "sparse" in tight["why_lossy"] and tight["verify"]["budget"] == 64
    assert everything["identical"] == 2 and everything["kl"]["max"] < 1e-9
    assert {"mean", "median", "p99", "max"} == set(tight["kl"])
    for name in ("positions", "disagreements", "disagreements_at_low_margin", "low_margin_positions"):
        assert isinstance(tight[name], int)
    for name in ("matched_prefix", "top1_agreement", "tokens_per_s", "speedup", "mean_acceptance_length"):
        assert isinstance(tight[name], float)
    assert tight["attention_density"] < 1.0 == everything["attention_density"]
    story, short = tight["per_prompt"]
    assert (story["line"], short["line"]) == (1, 2)
    assert len(story["kl"]) == 7 and short["identical"] is True and short["first_divergence"] is None


def test_json_alone_on_standard_output(
    eval_fidelity: Command, demo_ir: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--limit", "1", "--context", "40", "--max-new-tokens", "4", "--drafter", "none")
    commit = ("--verify", "commit", "--budget", "32", "--reference", "plain")
    assert eval_fidelity("-m", demo_ir, "--prompts", prompts, *arguments, *commit, "--json", "-", *F32) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drafter"] is None and report["num_assistant_tokens"] == 0
    assert [entry["num_input_tokens"] for entry in report["reference"]["prompts"]] == [40]
    (setting,) = report["settings"]
    assert setting["name"] == "commit, budget 32" and setting["lossless"] is True
    assert setting["identical"] == setting["prompts"] == 1


@pytest.mark.slow
def test_commits_are_compared_with_plain_decoding_by_the_same_operations(
    eval_fidelity: Command, demo_ir: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Limits of channels choose GatedMLP, whose rounding is another than the default's.
    made = list[object]()
    start = PipelineChoice.start

    def watched(choice: PipelineChoice, *arguments: Any) -> LLMPipeline:
        pipeline = start(choice, *arguments)
        made.append(pipeline.runner.backends.ffn)
        return pipeline

    arguments = ("--limit", "1", "--context", "40", "--max-new-tokens", "4", "--drafter", "none")
    given = ("-m", demo_ir, "--prompts", prompts, *arguments, "--ffn-density", "0.5", *F32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineChoice, "start", watched)
        assert eval_fidelity(*given, "--verify", "commit") == 0
        assert eval_fidelity(*given) == 0
    commit, sparse = made[:2], made[2:]
    assert [getattr(ffn, "backend", None) for ffn in commit] == ["native", "native"]
    assert [getattr(ffn, "backend", None) for ffn in sparse] == [None, "native"]
    assert capsys.readouterr().out.count("reference: with --ffn native") == 1


GIVEN = ("-m", "{demo}", "--prompts", "{prompts}", *F32)
BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no model": (("--prompts", "{prompts}"), "Missing option '-m' / '--model'"),
    "no prompts": (("-m", "{demo}"), "Missing option '--prompts'"),
    "model folder": (("-m", "/nowhere", "--prompts", "{prompts}"), "'/nowhere' does not exist"),
    "prompt file": (("-m", "{demo}", "--prompts", "none.jsonl"), "--prompts none.jsonl: No such file"),
    "bad prompts": (("-m", "{demo}", "--prompts", "{broken}"), "line 2 is no JSON"),
    "budgets": ((*GIVEN, "--budgets", "1k"), "--budgets '1k': expected whole numbers"),
    "budget 0": ((*GIVEN, "--budgets", "64,0"), "--budget 0: expected a number of tokens"),
    "rhos": ((*GIVEN, "--rhos", "0.1;0.2"), "--rhos '0.1;0.2': expected numbers"),
    "two sweeps": ((*GIVEN, "--rhos", "0.1", "--budgets", "64"), "--budgets and --rhos exclude each other"),
    "sweep of dense": ((*GIVEN, "--verify", "dense", "--budgets", "64"), "contradicts --verify dense"),
    "option of sparse": ((*GIVEN, "--verify", "dense", "--l0", "5"), "--l0 5 contradicts --verify dense"),
    "commit interval": ((*GIVEN, "--commit-interval", "5"), "--commit-interval 5 needs --verify commit"),
    "anchor layer": ((*GIVEN, "--anchor-layers", "0,99"), "99"),
    "limit": ((*GIVEN, "--limit", "0"), "--limit"),
    "context": ((*GIVEN, "--context", "0"), "--context"),
    "low margin": ((*GIVEN, "--low-margin", "-1"), "--low-margin"),
    "low margin nan": ((*GIVEN, "--low-margin", "nan"), "nan is not a finite number"),
    "one token": ((*GIVEN, "--max-new-tokens", "1"), "--max-new-tokens"),
    "draft folder": ((*GIVEN, "--draft-model", "/nowhere"), "/nowhere"),
    "no draft": (
        (*GIVEN, "--drafter", "none", "--num-assistant-tokens", "3"),
        "--num-assistant-tokens 3 needs a draft model",
    ),
    "draft tokens": (
        (*GIVEN, "--num-assistant-tokens", "64"),
        "--num-assistant-tokens 64: expected at most 63",
    ),
    "threshold": (
        (*GIVEN, "--verify", "commit", "--acceptance-threshold", "0.5"),
        "--acceptance-threshold 0.5 contradicts --verify commit",
    ),
    "drafter": ((*GIVEN, "--drafter", "oracle"), "'oracle' is not one of"),
    "property": ((*GIVEN, "--property", "X"), "--property 'X': expected KEY=VALUE"),
    "json": ((*GIVEN, "--json", "missing/f.json"), "--json missing/f.json: the folder missing can't be"),
    "plot": ((*GIVEN, "--plot", "missing/f.png"), "--plot missing/f.png: the folder missing can't be"),
    "picture format": ((*GIVEN, "--plot", "f.gif"), "expected a name that ends in .png, .svg, .pdf"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_with_one_line(
    eval_fidelity: Command,
    demo_ir: Path,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, expected = BAD[name]
    for file, content in (("prompts", '"Once upon a time"\n'), ("broken", '"fine"\nOnce\n')):
        (tmp_path / f"{file}.jsonl").write_text(content, encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    places = {
        "demo": demo_ir,
        "prompts": tmp_path / "prompts.jsonl",
        "broken": tmp_path / "broken.jsonl",
    }
    code = eval_fidelity(*(argument.format(**places) for argument in arguments))
    captured = capsys.readouterr()
    assert code == 2, captured.out + captured.err
    assert captured.out == ""
    assert captured.err.startswith("ovspec: error: ") and captured.err.count("\n") == 1
    assert expected in captured.err
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_leaves_no_file_and_the_old_one_alone(demo_ir: Path, prompts: Path, tmp_path: Path) -> None:
    old = tmp_path / "report.json"
    old.write_text("{}", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    command = [str(Path(sys.executable).with_name("ovspec")), "eval", "fidelity", "-m", str(demo_ir)]
    command += ["--prompts", str(prompts), "--max-new-tokens", "1000", "--budget", "64"]
    command += [*F32, "--json", str(old), "--plot", str(tmp_path / "report.png")]
    # On a terminal the progress bar says when the work has begun.
    terminal, end = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm"}
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env=environment)
        os.close(end)
        shown = b""
        while b"line 1: generate" not in shown:
            shown += os.read(terminal, 4096)
        run.send_signal(signal.SIGINT)
        while True:
            # Read on, because the buffer must not fill up; reading fails when the process has ended.
            try:
                if not os.read(terminal, 4096):
                    break
            except OSError:
                break
        output, _ = run.communicate(timeout=120)
    finally:
        os.close(terminal)
    assert run.returncode == 130 and output == b""
    assert sorted(tmp_path.iterdir()) == before
    assert old.read_text(encoding="utf-8") == "{}"
