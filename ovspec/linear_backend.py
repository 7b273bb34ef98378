"""Which operation computes linear layers with compressed weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import ovspec_ops

LinearBackend = Literal["native", "stock"]

# Where our operation beats OpenVINO's on passes of few rows and holds its own on prompts.
_ISAS = ("amx",)


def default_linear(
    attention: str, device: str, properties: Mapping[str, object], plugin_defaults: bool
) -> LinearBackend:
    """What computes linear layers where the user does not say.

    Args:
        attention: "native" or "stock", as in `AttentionConfig`.
        device: OpenVINO device.
        properties: of the user. One that asks for exact products (no dynamic quantization, execution for
            accuracy) leaves them to OpenVINO: our operation rounds rows to 16 bits.
        plugin_defaults: whether the plugin is to choose what the user does not.
    """
    exact = str(properties.get("DYNAMIC_QUANTIZATION_GROUP_SIZE", "")) == "0" or str(
        properties.get("EXECUTION_MODE_HINT", "")
    ).upper().endswith("ACCURACY")
    if plugin_defaults or exact or attention != "native" or not device.startswith("CPU"):
        return "stock"
    return "native" if ovspec_ops.active_isa() in _ISAS else "stock"
