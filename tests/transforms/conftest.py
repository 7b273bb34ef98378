"""Fixtures of the transforms' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest
from made_once import MakeOnce
from transforms.ffn_models import export_dense
from transforms.moe_models import compress, export_family

import ovspec_ops

ExportedMoE = ExportedDense = Callable[[str, str], ov.Model]


@pytest.fixture(scope="session", autouse=True)
def loaded_operations() -> None:
    """Nodes of our operations may be made and compiled."""
    ovspec_ops.load(ov.Core())


def _exporter(export: Callable[[str, Path], Path], make_once: MakeOnce) -> Callable[[str, str], ov.Model]:
    """Give a family's model with weights of a format; each is exported and compressed once."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

    def get(family: str, weight_format: str) -> ov.Model:
        core = ov.Core()
        exported = make_once(f"random {family}", lambda folder: export(family, folder)) / "openvino_model.xml"

        def write(folder: Path) -> None:
            source, half = core.read_model(exported), weight_format == "f16"
            model = source if half else compress(source, weight_format)
            ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=half)

        if weight_format == "f32":
            return core.read_model(exported)
        return core.read_model(make_once(f"random {family} {weight_format}", write) / "openvino_model.xml")

    return get


@pytest.fixture(scope="session")
def exported_moe(make_once: MakeOnce) -> ExportedMoE:
    """Models with experts by family and weight format."""
    return _exporter(export_family, make_once)


@pytest.fixture(scope="session")
def exported_dense(make_once: MakeOnce) -> ExportedDense:
    """Dense models by family and weight format."""
    return _exporter(export_dense, make_once)
