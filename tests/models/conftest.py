"""Fixtures of the model tests: the demo checkpoints, and one export per weight format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_once import MakeOnce

from ovspec_models import export_model

DEMO = Path(__file__).parents[2] / "tools" / "demo"


@pytest.fixture(scope="session")
def demo_target() -> Path:
    return DEMO / "target"


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """The smallest checkpoint there is: two layers, 0.9 M parameters."""
    return DEMO / "draft"


@pytest.fixture(scope="session")
def exported(make_once: MakeOnce, demo_draft: Path) -> Callable[[str], Path]:
    """Give the draft checkpoint exported with a weight format; each is exported once."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

    def get(weight_format: str) -> Path:
        def export(folder: Path) -> None:
            export_model(demo_draft, folder / "ir", weight_format=weight_format)

        return make_once(f"draft {weight_format}", export) / "ir"

    return get


@pytest.fixture
def checkpoint_copy(tmp_path: Path, demo_draft: Path) -> Path:
    return Path(shutil.copytree(demo_draft, tmp_path / "checkpoint"))


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[dict], None]], None]:
    """Change a JSON file in place with a function of its object."""

    def edit(path: Path, change: Callable[[dict], None]) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data)
        path.write_text(json.dumps(data), encoding="utf-8")

    return edit
