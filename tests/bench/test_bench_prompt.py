"""`ovspec bench prompt` on a tiny shape: what it measures and says, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, ovspec

from ovspec.bench.prompt import MODES, _pipeline_of

TINY = ("--shape", "qwen3-0.6b", "--layers", "1", "--vocab-size", "256")
CONTEXTS = (300, 1100)
RUN = (*MODES, "dense:128", "sparse:256")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, measured_once: None) -> tuple[str, dict[str, Any]]:
    """What one run of all modes prints and writes."""
    figures = tmp_path_factory.mktemp("prompt") / "figures.json"
    arguments = ["--context", ",".join(map(str, CONTEXTS)), "--mode", ",".join(RUN), "--repeat", "2"]
    arguments += ["--max-new-tokens", "3"]
    arguments += ["--property", "INFERENCE_PRECISION_HINT=f32"]
    ran = ovspec("bench", "prompt", *TINY, *arguments, "--json", figures)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, json.loads(figures.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_mode_reads_every_prompt_in_every_round(outcome: tuple[str, dict[str, Any]]) -> None:
    records = outcome[1]["records"]
    assert [(r["context"], r["mode"]) for r in records] == [(c, m) for c in CONTEXTS for m in RUN]
    for record in records:
        assert len(record["rounds"]) == 2
        assert all(found["seconds"] > 0 and found["cpu_seconds"] > 0 for found in record["rounds"])
        # Of two rounds, as another process may hold up the tokens of one.
        token_ms = [found["token_ms"] for found in record["rounds"]]
        assert 0 < 2 * min(token_ms) / 1000 < max(found["seconds"] for found in record["rounds"])
        assert record.keys() >= {"seconds_ratio", "cpu_seconds_ratio", "token_ms_ratio"}
    assert records[0]["seconds_ratio"] == {"median": 1.0, "min": 1.0, "max": 1.0}


def test_a_mode_can_have_a_chunk_size() -> None:
    pipeline, arguments = MODES["sparse"]
    assert _pipeline_of("sparse:256") == (pipeline, {**arguments, "max_num_batched_tokens": 256})


@pytest.mark.slow
def test_only_long_sparse_prompts_leave_something_out(outcome: tuple[str, dict[str, Any]]) -> None:
    for record in outcome[1]["records"]:
        # A prompt of up to 1,024 tokens is read whole.
        sparse = record["lossy"] and record["context"] > 1024
        assert all((found["density"] < 1.0) == sparse for found in record["rounds"])


@pytest.mark.slow
def test_output_says_what_ran_and_what_is_lossy(outcome: tuple[str, dict[str, Any]]) -> None:
    assert outcome[1]["properties"] == {"INFERENCE_PRECISION_HINT": "f32"}
    assert "properties: INFERENCE_PRECISION_HINT=f32" in outcome[0]
    assert outcome[0].count("sparse (LOSSY)") == outcome[0].count("sparse:256 (LOSSY)") == len(CONTEXTS)
    assert {r["mode"] for r in outcome[1]["records"] if r["lossy"]} == {"sparse", "sparse:256"}
    assert "/ genai" in outcome[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--mode", "dense,fast"], "expected some of genai,genai_sdpa,stock"),
        (["--mode", "dense:64,dense:64"], "--mode dense:64,dense:64: expected each once"),
        (["--mode", "dense:0"], "--mode dense:0: only stock, dense, sparse take a chunk size"),
        (["--mode", "genai:64"], "--mode genai:64: only stock, dense, sparse take a chunk size"),
        (["--mode", "sparse:64"], "sparse at least 128"),
        (["--context", "64,64"], "--context 64,64: expected each once"),
        (["--context", "0"], "--context 0: expected at least 1"),
        (["--context", "512,40960"], "positions; with 1 new tokens give at most"),
        (["--max-new-tokens", "0"], "--max-new-tokens 0: expected at least 1"),
        (["--repeat", "0"], "--repeat 0: expected at least 1"),
        (["--property", "X"], "expected KEY=VALUE"),
        (["--json", "missing/f.json"], "--json missing/f.json: the folder missing"),
    ],
)
def test_bad_input_is_refused_before_the_work(arguments: list[str], expected: str, tmp_path: Path) -> None:
    assert expected in one_line(ovspec("bench", "prompt", *TINY, *arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []
