"""`ovspec bench memory`: figures of both engines, of a folder and of a shape, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ovspec.bench.footprint import CACHED_STARTS, ENGINES, FootprintBench
from ovspec.bench.source import ModelSource
from ovspec.cli import cli


def figures(*arguments: str) -> dict[str, Any]:
    run = ["bench", "memory", *arguments, "--repeat", "1", "--json", "-"]
    return json.loads(CliRunner().invoke(cli, run, catch_exceptions=False).output)


@pytest.mark.slow
def test_a_folder(demo_ir: Path) -> None:
    body = figures("--model", str(demo_ir), "--context", "400")
    assert [record["engine"] for record in body["records"]] == list(ENGINES)
    for record in body["records"]:
        assert 0 < record["loaded_anon_bytes"] < record["anon_bytes"]
        assert 0 < record["start_s"] < record["first_token_s"] and record["cpu_s"] > 0
        # The weights are mapped, not copied.
        assert record["file_bytes"] > (demo_ir / "openvino_model.bin").stat().st_size
    ours, theirs = body["records"][1], body["records"][0]
    assert body["ratios"]["anon"] == ours["anon_bytes"] / theirs["anon_bytes"]
    starts = {start["name"]: start for start in body["cached_starts"]}
    assert list(starts) == list(CACHED_STARTS)
    assert all(0 < start["start_s"] < start["first_token_s"] for start in starts.values())
    quickest = min(starts[name]["first_token_s"] for name in starts if name != "ovspec")
    assert body["ratios"]["cached_start"] == starts["ovspec"]["first_token_s"] / quickest
    assert body["ratios"]["start"] == ours["first_token_s"] / theirs["first_token_s"]


@pytest.mark.slow
def test_a_shape() -> None:
    body = figures("--shape", "qwen3-0.6b", "--layers", "1", "--vocab-size", "5000", "--context", "64")
    assert body["model"] == "qwen3-0.6b" and len(body["records"]) == 2


def test_refusals(demo_ir: Path) -> None:
    source = ModelSource.from_folder(demo_ir)
    for context in (0, 10**6):
        with pytest.raises(ValueError, match=f"--context {context}"):
            FootprintBench(source, context, 1, {})
    with pytest.raises(ValueError, match="--repeat 0"):
        FootprintBench(source, 64, 0, {})
    with pytest.raises(RuntimeError, match="openvino_genai failed"):
        FootprintBench(source, 64, 1, {"NO_SUCH_PROPERTY": "1"}).run()
