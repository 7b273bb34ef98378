"""How far rows are rounded before integer products, by the user's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import ovspec_ops
from ovspec_transforms import RowBits

# Where 8 bits are faster and OpenVINO's own products round rows likewise. AMX takes 16 at the same speed.
_ISAS = ("avx512vnni",)
_GROUP: Final = 32  # values of a scale, ours and OpenVINO's default
_GROUP_SIZE: Final = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


def asks_exact_rows(properties: Mapping[str, object]) -> str | None:
    """The property that asks for rows that are not rounded, as a user wrote it."""
    if str(properties.get(_GROUP_SIZE, "")) == "0":
        return f"{_GROUP_SIZE}=0"
    if str(properties.get("EXECUTION_MODE_HINT", "")).upper().endswith("ACCURACY"):
        return "EXECUTION_MODE_HINT=ACCURACY"
    return None


def row_bits(device: str, properties: Mapping[str, object]) -> RowBits:
    """Bits of the integers that rows become in `GatedMLP`: 8 only where OpenVINO rounds as far by itself.

    Args:
        device: OpenVINO device.
        properties: of the user. Execution for accuracy, DYNAMIC_QUANTIZATION_GROUP_SIZE=0 and groups below
            32, ours, ask for more than 8 bits. INFERENCE_PRECISION_HINT does not: OpenVINO rounds in f32 too.
    """
    if not device.startswith("CPU") or ovspec_ops.active_isa() not in _ISAS or asks_exact_rows(properties):
        return 16
    group = str(properties.get(_GROUP_SIZE, _GROUP))
    return 16 if group.isdigit() and int(group) < _GROUP else 8
