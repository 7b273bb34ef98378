"""`make wheel`: the same commit gives the same bytes anywhere, and the wheel runs where no compiler is."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from commands import command

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.sweep


def made(folder: Path) -> Path:
    """What `make wheel` makes of the last commit, in a copy of the repository."""
    assert command("git", "clone", "--quiet", ROOT, folder).returncode == 0
    run = command("make", "wheel", cwd=folder, timeout=7200)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "sparse verification" in run.stdout  # the demo, by the installed wheel
    return folder / "dist"


def test_two_builds_are_one(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "longer/name")
    [wheel] = first.glob("ovspec-*-py3-none-manylinux_*_x86_64.whl")
    assert wheel.read_bytes() == (second / wheel.name).read_bytes()
    assert (first / "SHA256SUMS").read_text() == (second / "SHA256SUMS").read_text()
    sums = dict(reversed(line.split()) for line in (first / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in first.iterdir()
        if path.name != "SHA256SUMS"
    }
    names = zipfile.ZipFile(wheel).namelist()
    assert "ovspec_ops/libovspec_ops.so" in names
    assert not [name for name in names if name.endswith((".cpp", ".hpp", ".pyc"))]
    listed = {part["name"] for part in json.loads((first / "ovspec.cdx.json").read_text())["components"]}
    assert {"openvino", "openvino-genai", "openvino-tokenizers", "numpy"} <= listed
