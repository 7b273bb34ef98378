"""Which operation computes linear layers with compressed weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import ovspec_ops
from ovspec.runtime.row_rounding import asks_exact_rows
from ovspec_ops.common.byte_values import ISAS

LinearBackend = Literal["native", "stock"]

# Where our operation beats OpenVINO's on passes of few rows and holds its own on prompts.
_ISAS = ("amx", *ISAS)


def linear_backend(
    asked: LinearBackend | None,
    attention: str,
    device: str,
    properties: Mapping[str, object],
    plugin_defaults: bool,
) -> LinearBackend:
    """What computes linear layers: what the user asks for, or `default_linear`.

    Raises:
        ValueError: an unknown name, or ours beside a property that asks for exact rows.
    """
    if asked not in (None, "native", "stock"):
        raise ValueError(f"linear={asked!r}: expected 'native' or 'stock'")
    exact = asks_exact_rows(properties)
    if asked == "native" and exact:
        raise ValueError(f"linear='native' with {exact}: our operation rounds rows; leave one of them out")
    return asked or default_linear(attention, device, properties, plugin_defaults)


def default_linear(
    attention: str, device: str, properties: Mapping[str, object], plugin_defaults: bool
) -> LinearBackend:
    """What computes linear layers where the user does not say.

    Args:
        attention: "native" or "stock", as in `AttentionConfig`.
        device: OpenVINO device.
        properties: as `rounding_settings` has them. One that says how rows are to be rounded
            (DYNAMIC_QUANTIZATION_GROUP_SIZE, execution for accuracy) leaves them to OpenVINO.
            INFERENCE_PRECISION_HINT does not: ours rounds rows to 16 bits, or to 8 where OpenVINO
            does so in f32 too unless DYNAMIC_QUANTIZATION_GROUP_SIZE is 0.
        plugin_defaults: whether the plugin is to choose what the user does not.
    """
    theirs = "DYNAMIC_QUANTIZATION_GROUP_SIZE" in properties or asks_exact_rows(properties) is not None
    if plugin_defaults or theirs or attention != "native" or not device.startswith("CPU"):
        return "stock"
    return "native" if ovspec_ops.active_isa() in _ISAS else "stock"
