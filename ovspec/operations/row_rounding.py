"""How far rows are rounded before integer products, by the user's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import openvino as ov
from openvino import opset15 as ops

import ovspec_ops
from ovspec.devices.devices import is_cpu, openvino_core
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec_models import OvspecConfig
from ovspec_models.folder.graph_files import graph_of
from ovspec_models.folder.ir_facts import IrFacts
from ovspec_ops.common.byte_values import GROUP, ISAS
from ovspec_transforms import Arithmetic, RowBits, last_line

_GROUP_SIZE: Final = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_PRECISION_HINTS: Final = ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT")


def rounding_settings(
    model: str | Path | ov.Model, properties: Mapping[str, object] | None
) -> dict[str, object]:
    """The user's properties, above what the model itself asks the plugin for."""
    path = ["runtime_options", _GROUP_SIZE]
    if isinstance(model, ov.Model):
        of_model = str(model.get_rt_info(path).value) if model.has_rt_info(path) else None
    else:
        xml = graph_of(Path(model))  # one that is not there is refused elsewhere
        of_model = IrFacts.read(xml).runtime_options.get(_GROUP_SIZE) if xml.is_file() else None
    return {**({} if of_model is None else {_GROUP_SIZE: of_model}), **(properties or {})}


def asks_exact_rows(properties: Mapping[str, object]) -> str | None:
    """The property that asks for rows that are not rounded, as a user wrote it."""
    if _group_size(properties) == 0:
        return f"{_GROUP_SIZE}={properties[_GROUP_SIZE]}"
    asks_accuracy = str(properties.get("EXECUTION_MODE_HINT", "")).upper().endswith("ACCURACY")
    return "EXECUTION_MODE_HINT=ACCURACY" if asks_accuracy else None


def _group_size(properties: Mapping[str, object]) -> int:
    """Values that share a scale. The plugin takes many spellings; one that is not understood counts as 0."""
    try:
        return int(float(str(properties.get(_GROUP_SIZE, GROUP))))
    except (ValueError, OverflowError):
        return 0


def rounds_rows(model: str | Path | ov.Model, ffn: FfnConfig | None, linear: str) -> bool:
    """Whether there is an operation of ours that asks how far to round."""
    if linear == "native" or (ffn is not None and ffn.backend == "native"):
        return True
    if isinstance(model, ov.Model):
        return any(node.get_type_name() == "GatedMLP" for node in model.get_ops())
    config = OvspecConfig.load(Path(model))
    return config is not None and "sparse_ffn" in config.operations


def row_bits(device: str, properties: Mapping[str, object]) -> RowBits:
    """Bits to which rows are rounded in `Linear` and `GatedMLP`: 8 only where OpenVINO does so too.

    Args:
        properties: as `rounding_settings` has them. Execution for accuracy and groups of 0 ask for rows that
            are not rounded: 32, which is 16 in GatedMLP. Groups below ours ask for more than 8 bits.
            INFERENCE_PRECISION_HINT does not: OpenVINO rounds in f32 too.
    """
    if asks_exact_rows(properties):
        return 32
    if not is_cpu(device) or ovspec_ops.active_isa() not in ISAS:
        return 16
    return 16 if _group_size(properties) < GROUP else 8


def arithmetic(properties: Mapping[str, object]) -> Arithmetic:
    """Arithmetic of products with floating-point weights on CPU: what OpenVINO's own would take.

    The plugin says which precision it takes without a hint. With one it is asked with a model of one product,
    which costs 14 ms, since it does not take every hint on every processor.

    Args:
        properties: of the user; INFERENCE_PRECISION_HINT and EXECUTION_MODE_HINT count.

    Raises:
        ValueError: the plugin refuses a value; it names it.
    """
    hints = {key: properties[key] for key in _PRECISION_HINTS if key in properties}
    if not hints:
        default = openvino_core().get_property("CPU", "INFERENCE_PRECISION_HINT")
        return "bf16" if default == ov.Type.bf16 else "f32"
    rows = ops.parameter(ov.PartialShape([-1, 1]), ov.Type.f32)
    product = ov.Model([ops.matmul(rows, ops.constant(np.ones((1, 1), np.float32)), False, True)], [rows])
    try:
        compiled = openvino_core().compile_model(product, "CPU", hints)
    except RuntimeError as error:
        raise ValueError(f"device 'CPU' refuses a property: {last_line(error)}") from error
    return "bf16" if compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.bf16 else "f32"
