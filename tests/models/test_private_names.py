"""Releases of the export libraries without the private names that exports patch: plainer, never broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ovspec_models import ModelInfo, export_model
from ovspec_models.folder.private_names import misfit

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
NNCF = "nncf.quantization.algorithms.weight_compression.openvino_backend"
CONVERT = "optimum.exporters.openvino.utils"


def test_what_a_library_lacks_is_named() -> None:
    assert misfit("nowhere", ["x"]) == "nowhere can't be imported (No module named 'nowhere')"
    assert misfit("pathlib", ["Path.exists", "Path.frobnicate"]) == "pathlib has no Path.frobnicate"
    assert misfit("shutil", ["copytree"], copytree=("src", "dst")) == ""
    assert misfit("shutil", ["copytree"], copytree=("colour",)) == "copytree of shutil takes no colour"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name"), [(NNCF, "get_const_value_as_numpy_tensor"), (CONVERT, "clear_class_registry")]
)
def test_an_export_without_a_name_is_the_same(
    tmp_path: Path,
    demo_draft: Path,
    exported: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    name: str,
) -> None:
    """The name is taken away before the export, except where the library itself uses it."""
    lines: list[str] = []
    want = exported("int8")
    if module == CONVERT:
        monkeypatch.delattr(f"{module}.{name}")
    else:
        monkeypatch.setattr("ovspec_models.export.mapped_weights.OPENVINO_BACKEND", "nncf.tensor")
    out = export_model(demo_draft, tmp_path / "out", weight_format="int8", warn=lines.append)
    assert len(lines) == 1 and ("nncf.tensor has no" if module == NNCF else name) in lines[0], lines
    assert ModelInfo.read(out).weight_format() == "int8"
    assert (out / "openvino_model.bin").read_bytes() == (want / "openvino_model.bin").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in want.iterdir())
