"""Which operation computes linear layers."""

from __future__ import annotations

from typing import Literal

from ovspec.runtime.devices import is_cpu

LinearBackend = Literal["native", "stock"]


def linear_backend(
    asked: LinearBackend | None, attention: str, device: str, plugin_defaults: bool
) -> LinearBackend:
    """What computes linear layers: what the user asks for, else ours wherever it runs.

    Rows of ours do not depend on each other, which OpenVINO does not promise of its own products.

    Args:
        asked: "native", "stock", or `None` where the user does not say.
        attention: "native" or "stock", as in `AttentionConfig`. Beside stock attention, whose rows depend on
            each other, the plugin's own products are left in place.
        device: OpenVINO device.
        plugin_defaults: whether the plugin is to choose what the user does not.

    Raises:
        ValueError: an unknown name.
    """
    if asked not in (None, "native", "stock"):
        raise ValueError(f"linear={asked!r}: expected 'native' or 'stock'")
    stock = plugin_defaults or attention != "native" or not is_cpu(device)
    return asked or ("stock" if stock else "native")
