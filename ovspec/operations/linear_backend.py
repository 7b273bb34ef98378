"""Which operation computes linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import openvino as ov

from ovspec.devices.devices import is_cpu
from ovspec_transforms import AdaptedLayer, Arithmetic, TransformReport, native_linear

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

    Raises:
        ValueError: an unknown name.
    """
    if asked not in (None, "native", "stock"):
        raise ValueError(f"linear={asked!r}: expected 'native' or 'stock'")
    stock = plugin_defaults or attention != "native" or not is_cpu(device)
    return asked or ("stock" if stock else "native")


def native_layers(
    graph: ov.Model, arithmetic: Arithmetic, required: bool, adapted: Sequence[AdaptedLayer] = ()
) -> TransformReport:
    """Replace linear layers by `Linear`; a model without any is an error if the user asked for it.

    Args:
        adapted: layers that adapters may add to, as of `native_linear`.

    Raises:
        ValueError: there are none.
    """
    report = native_linear(graph, arithmetic, adapted)
    if required and not report.changed:
        found = report.left[0] if report.left else "it has no product with constant weights"
        raise ValueError(
            f"linear='native': the model has no linear layer that our operation takes ({found}); "
            "leave it out, or pass linear='stock'"
        )
    return report
