"""The compressed model is written beside the one that it replaces, not into the system's temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovspec_models.temporary_folder import compressed_within


def test_in_the_folder_while_the_context_lasts(tmp_path: Path) -> None:
    quantization = pytest.importorskip("optimum.intel.openvino.quantization", reason="needs ovspec[export]")
    with compressed_within(tmp_path), quantization.TemporaryDirectory() as inside:
        assert Path(inside).parent == tmp_path
    with quantization.TemporaryDirectory() as outside:
        assert Path(outside).parent != tmp_path
    assert list(tmp_path.iterdir()) == []
