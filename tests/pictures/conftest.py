"""Fixtures: every family that reads pictures exported once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from made_once import MakeOnce
from tiny_pictures import export_visual


@pytest.fixture(scope="session")
def visual_family(make_once: MakeOnce) -> Callable[[str], Path]:
    """Give the folder of a family, exported in fp32; the checkpoint lies beside it."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

    def get(name: str) -> Path:
        return make_once(f"tiny visual {name}", lambda folder: export_visual(name, folder)) / "ir"

    return get
