"""`ovspec bench verify` on a tiny shape: its output, not its times."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import ovspec

from ovspec.bench.backends import DEFAULT_BACKENDS as BACKENDS
from ovspec.bench.source import ModelSource
from ovspec.bench.verify import VerifyBench
from ovspec.operations.linear_backend import LinearBackend
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_ops.key_summary.reference import summary_bytes

BLOCK, HEAD_SIZE = 32, 128
TINY = ("--shape", "qwen3-0.6b", "--layers", "2", "--vocab-size", "256")
CONTEXTS, TOKENS, BUDGET = (64, 301), (1, 3), 96


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str
    json: dict[str, Any]
    plot: Path


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, measured_once: None) -> Outcome:
    """One run of all backends, in a pipe."""
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    arguments = ["bench", "verify", *TINY, "--context", "64,301", "--tokens", "1,3", "--budget", str(BUDGET)]
    plot = path.with_name("figures.png")
    arguments += ["--repeat", "3", "--json", str(path), "--plot", str(plot)]
    ran = ovspec(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, plot.name}
    figures = json.loads(path.read_text(encoding="utf-8"))
    return Outcome(ran.returncode, ran.stdout, ran.stderr, figures, plot)


def test_json_has_the_promised_keys(outcome: Outcome) -> None:
    assert {"machine", "versions", "bandwidth_gb_s", "records"} <= outcome.json.keys()
    assert outcome.json["machine"].keys() >= {
        "processor",
        "num_threads",
        "instruction_set",
        "memory_bytes",
    }
    assert outcome.json["versions"].keys() == {"ovspec", "openvino", "python", "numpy"}
    assert outcome.json["bandwidth_gb_s"] > 0.1
    assert outcome.json["machine"]["num_threads"] >= 1
    assert outcome.json["interleaved"] is True


def test_records_cover_every_point_with_exactly_the_promised_fields(outcome: Outcome) -> None:
    records = outcome.json["records"]
    points = [(record["context"], record["tokens"], record["backend"]) for record in records]
    assert points == [(c, t, backend) for c in CONTEXTS for t in TOKENS for backend in BACKENDS]
    for record in records:
        assert record.keys() == {
            "backend",
            "context",
            "tokens",
            "density",
            "budget",
            "experts_read",
            "ffn_density",
            "ms",
            "selection_ms",
            "steps_ms",
            "gb_s",
        }
        assert record["ms"].keys() == {"median", "min", "max"}
        assert 0 < record["ms"]["min"] <= record["ms"]["median"] <= record["ms"]["max"]
        sparse = record["backend"] == "sparse"
        assert record["budget"] == (min(BUDGET, record["context"] + record["tokens"]) if sparse else None)
        steps = record["steps_ms"]
        if record["backend"] == "stock":
            assert record["selection_ms"] is None and not steps
        else:
            assert {"linear", "attention", "cache_write", "rms", "block_select"} <= steps.keys()
            # Medians of two passes; on a busy machine most of a pass is beside its steps.
            assert 0.02 * record["ms"]["min"] < sum(steps.values()) < 1.5 * record["ms"]["max"]
            selection = steps["key_summary"] + steps["block_select"] if sparse else None
            assert record["selection_ms"] == selection


def test_density_is_the_share_of_the_context_that_attention_reads(outcome: Outcome) -> None:
    for record in outcome.json["records"]:
        context = record["context"] + record["tokens"]
        if record["backend"] != "sparse" or context <= BUDGET:
            assert record["density"] == 1.0
        else:
            assert record["density"] == pytest.approx(density(context, summary_bytes(HEAD_SIZE)))


def density(context: int, summary: int) -> float:
    """Share of a context's bytes that a pass with `BUDGET` reads; `summary`: bytes of one, per KV head."""
    blocks = -(-context // BLOCK)
    # All blocks but those over the budget, of which the last, partial one is kept; and every block's summary.
    kept = context - (blocks - BUDGET // BLOCK) * BLOCK
    return (kept + blocks * summary / (2 * (HEAD_SIZE + 8))) / context


def test_gb_s_counts_weights_and_the_part_of_the_cache_that_is_read(outcome: Outcome) -> None:
    # Two layers of 8 heads of 128: u8 by token has 8 bytes more a row, keys by channel a quarter more.
    token_bytes = {"stock": 2 * 8 * (136 + 160), "dense": 2 * 8 * 2 * 136, "sparse": 2 * 8 * 2 * 136}
    weights = outcome.json["model"]["weight_bytes"]
    for record in outcome.json["records"]:
        attended = record["density"] * (record["context"] + record["tokens"])
        read = weights + attended * token_bytes[record["backend"]]
        assert record["gb_s"] * record["ms"]["median"] * 1e6 == pytest.approx(read, rel=1e-3)


def test_picture_is_drawn(outcome: Outcome) -> None:
    assert outcome.plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("linear", ["native", "stock"])
def test_selection_is_timed_and_has_a_line(linear: LinearBackend) -> None:
    """As a step of the layers, and as an operation of its own beside stock linear layers."""
    source = ModelSource.from_shape("qwen3-0.6b", 2, 256, "int8")
    sparse = SparseVerify(budget=BUDGET)
    bench = VerifyBench(source, CONTEXTS, TOKENS, sparse, 1, ("dense", "sparse"), linear=linear)
    report = bench.run()
    for record in report.records:
        assert (record.selection_ms is not None) == (record.backend == "sparse")
        assert record.selection_ms is None or 0 < record.selection_ms < record.ms.max
        assert ("linear" in record.steps_ms) == (linear == "native")
    lines = [line for line in report.notes() if line.startswith("selection at context")]
    assert len(lines) == len(CONTEXTS) * len(TOKENS)
    assert len([line for line in report.notes() if ", ms by step: " in line]) == len(report.records)


def test_output_says_synthetic_precisions_and_lossy(outcome: Outcome) -> None:
    assert outcome.json["model"]["synthetic"] is True
    assert "qwen3-0.6b (synthetic: random weights" in outcome.stdout
    for backend in BACKENDS:
        assert outcome.json["precisions"][backend]["key_cache"] in outcome.stdout
    assert outcome.json["precisions"]["dense"]["key_cache"] == "u8 by token"
    assert "sparse is LOSSY" in outcome.stdout


def test_stock_runs_at_the_default_properties_of_the_plugin(outcome: Outcome) -> None:
    # The CPU plugin quantises keys by channel unless told otherwise; ours asks for by token.
    assert outcome.json["precisions"]["stock"]["key_cache"] == "u8 by channel"


def test_pipe_shows_no_progress_bar(outcome: Outcome) -> None:
    assert outcome.stderr == ""
    assert "\x1b" not in outcome.stdout


@pytest.mark.slow
def test_terminal_shows_a_progress_bar_and_json_alone_goes_to_standard_output(tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    program = Path(sys.executable).with_name("ovspec")
    arguments = [*TINY, "--context", "64", "--tokens", "1", "--repeat", "1", "--backend", "stock"]
    command = [str(program), "bench", "verify", *arguments, "--json", "-"]
    with (tmp_path / "stdout").open("wb") as stdout:
        running = subprocess.Popen(command, stdout=stdout, stderr=stderr, env={**os.environ, "TERM": "xterm"})
    os.close(stderr)
    shown = b""
    # A terminal that nobody reads fills up, and the command waits.
    while chunk := _read(terminal):
        shown += chunk
    os.close(terminal)
    assert running.wait(60) == 0
    assert b"compiling stock" in shown
    figures = json.loads((tmp_path / "stdout").read_text(encoding="utf-8"))
    assert [record["backend"] for record in figures["records"]] == ["stock"]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports the end of a terminal as an error
        return b""


def test_one_model_at_a_time_times_the_same_points_and_says_so() -> None:
    source = ModelSource.from_shape("qwen3-0.6b", 1, 256, "int8")
    bench = VerifyBench(source, contexts=(64,), tokens=(2,), sparse=SparseVerify(budget=32), repeat=1)
    steps: list[str] = []
    report = bench.run(steps.append, interleaved=False)
    assert [record.backend for record in report.records] == list(BACKENDS)
    assert report.as_json()["interleaved"] is False
    assert any("NOT interleaved" in line for line in report.lines())
    compiled = [step for step in steps if step.startswith("compiling")]
    assert compiled == ["compiling stock", "compiling native"]
    assert steps.index("compiling native") > steps.index("context 64, 2 tokens: stock")
    assert len(steps) == bench.num_steps


def test_exported_model_is_read_as_the_pipeline_reads_it(
    bench_verify: Callable[..., int], demo_ir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(demo_ir), "--context", "100", "--tokens", "4", "--budget", "64"]
    assert bench_verify(*arguments, "--repeat", "1", "--json", "-") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["model"]["synthetic"] is False
    assert figures["model"]["name"] == str(demo_ir)
    densities = [record["density"] for record in figures["records"]]
    assert densities[:2] == [1.0, 1.0]
    assert densities[2] < 1.0


def test_stock_operations_select_as_many_blocks_as_ours() -> None:
    source = ModelSource.from_shape("qwen3-0.6b", 2, 256, "int8")
    backends = ("stock", "sparse", "sparse_stock")
    bench = VerifyBench(source, (301,), (3,), SparseVerify(budget=BUDGET), repeat=1, backends=backends)
    records = {record.backend: record for record in bench.run().records}
    # Its summaries are mean keys in f32.
    assert records["sparse_stock"].density == pytest.approx(density(304, 4 * HEAD_SIZE))
    assert records["sparse"].density == pytest.approx(density(304, summary_bytes(HEAD_SIZE)))
    assert records["sparse_stock"].selection_ms is None
    assert records["sparse_stock"].budget == BUDGET
