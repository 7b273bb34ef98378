"""Fixtures of the transforms' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest
from transforms.ffn_models import export_dense
from transforms.moe_models import compress, export_family

import ovspec_ops

ExportedMoE = ExportedDense = Callable[[str, str], ov.Model]


@pytest.fixture(scope="session", autouse=True)
def loaded_operations() -> None:
    """Nodes of our operations may be made and compiled."""
    ovspec_ops.load(ov.Core())


def _exporter(
    export: Callable[[str, Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], ov.Model]:
    """Give a family's model with weights of a format; each is exported and compressed once."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
    made: dict[tuple[str, str], Path] = {}

    def get(family: str, weight_format: str) -> ov.Model:
        core, key = ov.Core(), (family, weight_format)
        if (family, "f32") not in made:
            made[family, "f32"] = export(family, tmp_path_factory.mktemp(family))
        if key not in made:
            path = tmp_path_factory.mktemp(f"{family}-{weight_format}") / "openvino_model.xml"
            source = core.read_model(made[family, "f32"])
            if weight_format == "f16":
                ov.save_model(source, path, compress_to_fp16=True)
            else:
                ov.save_model(compress(source, weight_format), path, compress_to_fp16=False)
            made[key] = path
        return core.read_model(made[key])

    return get


@pytest.fixture(scope="session")
def exported_moe(tmp_path_factory: pytest.TempPathFactory) -> ExportedMoE:
    """Models with experts by family and weight format."""
    return _exporter(export_family, tmp_path_factory)


@pytest.fixture(scope="session")
def exported_dense(tmp_path_factory: pytest.TempPathFactory) -> ExportedDense:
    """Dense models by family and weight format."""
    return _exporter(export_dense, tmp_path_factory)
