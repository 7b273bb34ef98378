"""Fixtures of the model tests: the demo checkpoints, and one export per weight format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

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
def exported(tmp_path_factory: pytest.TempPathFactory, demo_draft: Path) -> Callable[[str], Path]:
    """Give the draft checkpoint exported with a weight format; each is exported once."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
    made: dict[str, Path] = {}

    def get(weight_format: str) -> Path:
        if weight_format not in made:
            out = tmp_path_factory.mktemp(weight_format) / "ir"
            made[weight_format] = export_model(demo_draft, out, weight_format=weight_format)
        return made[weight_format]

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
