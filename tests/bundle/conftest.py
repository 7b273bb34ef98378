"""One bundle of the demo pair, made by the installed command and installed without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import command, installed_ovspec, isolated

from ovspec_models import demo_pair_path

_INSTALLED = """
import importlib.metadata, pathlib, ovspec
found = importlib.metadata.distribution("ovspec")
installed = found.files and pathlib.Path(found.locate_file("ovspec/__init__.py")).resolve()
raise SystemExit(0 if installed == pathlib.Path(ovspec.__file__).resolve() else 1)
"""


@pytest.fixture(scope="session")
def needs_installation(tmp_path_factory: pytest.TempPathFactory) -> None:
    if command(sys.executable, "-c", _INSTALLED, cwd=tmp_path_factory.mktemp("elsewhere")).returncode:
        pytest.skip("ovspec runs from a checkout here; `make test` installs it")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, needs_installation: None) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("readme") / "bundle"
    run = installed_ovspec("bundle", demo_pair_path(), out, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="session")
def bundle(report: dict[str, Any]) -> Path:
    """The bundle's folder, installed."""
    folder = Path(report["out"])
    run = isolated(folder / "install.sh")
    assert run.returncode == 0, run.stderr
    assert "the bundle works" in run.stdout
    return folder
