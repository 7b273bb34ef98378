"""Which operation computes linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

LinearBackend = Literal["native", "stock"]


def linear_backend(
    asked: LinearBackend | None,
    attention: str,
    device: str,
    properties: Mapping[str, object],
    plugin_defaults: bool,
) -> LinearBackend:
    """What computes linear layers: what the user asks for, or `default_linear`.

    Raises:
        ValueError: an unknown name.
    """
    if asked not in (None, "native", "stock"):
        raise ValueError(f"linear={asked!r}: expected 'native' or 'stock'")
    return asked or default_linear(attention, device, properties, plugin_defaults)


def default_linear(
    attention: str, device: str, properties: Mapping[str, object], plugin_defaults: bool
) -> LinearBackend:
    """What computes linear layers where the user does not say.

    Ours wherever it runs: its rows do not depend on each other, which OpenVINO does not promise of its own,
    and it rounds rows no further than the properties allow (`row_bits`, `arithmetic`).

    Args:
        attention: "native" or "stock", as in `AttentionConfig`. Beside stock attention, whose rows depend on
            each other, the plugin's own products are left in place.
        device: OpenVINO device.
        properties: as `rounding_settings` has them.
        plugin_defaults: whether the plugin is to choose what the user does not.
    """
    return "stock" if plugin_defaults or attention != "native" or not device.startswith("CPU") else "native"
