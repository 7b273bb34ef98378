"""What `ovspec bench verify` refuses: one line, exit code 2, before the long work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

WHOLE = ("--shape", "qwen3-0.6b")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([], "give either --model DIR or --shape NAME", id="no model"),
        pytest.param([*WHOLE, "--model", "here"], "got both", id="two models"),
        pytest.param(["--shape", "qwen9"], "'qwen9' is not known, expected one of qwen3-0.6b", id="shape"),
        pytest.param(["--model", "nowhere"], "model folder 'nowhere' does not exist", id="folder"),
        pytest.param(["--model", "x", "--layers", "2"], "--layers 2 needs --shape", id="layers of a model"),
        pytest.param([*WHOLE, "--layers", "0"], "0 is not in the range x>=1", id="no layers"),
        pytest.param([*WHOLE, "--vocab-size", "0"], "0 is not in the range x>=1", id="no vocabulary"),
        pytest.param([*WHOLE, "--weight-format", "int3"], "'int3' is not one of", id="weight format"),
        pytest.param([*WHOLE, "--context", "4k"], "--context '4k': expected whole numbers", id="context 4k"),
        pytest.param([*WHOLE, "--context", "0"], "--context 0: expected", id="context 0"),
        pytest.param([*WHOLE, "--context", "40960"], "give at most 40952", id="context beyond positions"),
        pytest.param([*WHOLE, "--tokens", "1,,2"], "--tokens '1,,2': expected whole", id="tokens 1,,2"),
        pytest.param([*WHOLE, "--tokens", "0,1"], "--tokens 0: expected", id="tokens 0"),
        pytest.param([*WHOLE, "--tokens", "4,1,4"], "--tokens 4,1,4: expected each once", id="tokens twice"),
        pytest.param([*WHOLE, "--context", "64,64"], "--context 64,64: expected each", id="context twice"),
        pytest.param([*WHOLE, "--json", "f.svg", "--plot", "./f.svg"], "are one file", id="one file"),
        pytest.param([*WHOLE, "--tokens", "65"], "at most 64 tokens", id="tokens 65"),
        pytest.param([*WHOLE, "--budget", "-1"], "--budget -1: expected a number", id="budget -1"),
        pytest.param([*WHOLE, "--budget", "0"], "--budget 0: nothing would be limited", id="budget 0"),
        pytest.param([*WHOLE, "--repeat", "0"], "--repeat 0: expected at least 1", id="repeat 0"),
        pytest.param([*WHOLE, "--backend", "gpu"], "some of stock,dense,sparse", id="backend"),
        pytest.param([*WHOLE, "--backend", "stock,stock"], "each once", id="backend twice"),
        pytest.param([*WHOLE, "--json", "missing/f.json"], "missing can't be written (No", id="no folder"),
        pytest.param([*WHOLE, "--json", "/proc/f.json"], "folder /proc can't be written", id="json in /proc"),
        pytest.param([*WHOLE, "--json", "."], "--json .: is a folder", id="json is a folder"),
        pytest.param([*WHOLE, "--plot", "missing/f.png"], "--plot missing/f.png: the folder", id="plot"),
        pytest.param([*WHOLE, "--plot", "f.gif"], "ends in .png, .svg, .pdf", id="picture format"),
        pytest.param([*WHOLE, "--kv-cache-precision", "u4"], "'u4' is not one of", id="cache precision"),
        pytest.param([*WHOLE, "--property", "X"], "--property 'X': expected KEY=VALUE", id="property"),
    ],
)
def test_refused_with_one_line(
    bench_verify: Callable[..., int],
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = bench_verify(*arguments)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("ovspec: error: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert list(tmp_path.iterdir()) == []


def test_red_self_check_is_refused(
    bench_verify: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    red = SimpleNamespace(name="VerifyAttention", isa="avx2", ok=False)
    green = SimpleNamespace(name="KeySummary", isa="avx2", ok=True)
    monkeypatch.setattr(sys.modules["ovspec.cli.options.bench"], "self_check", lambda: [green, red])
    assert bench_verify(*WHOLE) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "self-check of the native operations failed: VerifyAttention (avx2);" in captured.err
