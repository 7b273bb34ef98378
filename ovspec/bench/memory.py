"""Check whether the compiled models of a benchmark fit in memory together."""

from __future__ import annotations

from collections.abc import Mapping

_GB = 1e9


def fits_together(models: Mapping[str, int], shared: int, available: int) -> bool:
    """Whether all models fit at once.

    Args:
        models: bytes of each compiled model with its cache, by name.
        shared: bytes that are needed in addition, once for all models.
        available: bytes of memory available.

    Raises:
        ValueError: the largest model does not fit even alone.
    """
    largest = max(models, key=lambda name: models[name])
    needed = shared + models[largest]
    if needed > available:
        raise ValueError(
            f"not enough memory for the {largest} model alone: about {needed / _GB:.1f} GB are needed "
            f"(weights, KV cache, buffers), {available / _GB:.1f} GB are available; "
            "give fewer --layers (with --shape) or a shorter --context"
        )
    return shared + sum(models.values()) <= available
