"""Settings that are one number for all layers of a kind, or one number per layer."""

from __future__ import annotations

from ovspec_models.folder.sparse_verify import numbers_of


def per_layer(what: str, value: float | tuple[float, ...], layers: int, kind: str) -> tuple[float, ...]:
    """Spread a setting over the layers that it is for.

    Args:
        what: name of the setting, for messages.
        value: one number, or one per layer.
        kind: what one of them is, for messages.

    Raises:
        ValueError: one number per layer, of another number of layers.
    """
    numbers = numbers_of(value)
    if not isinstance(value, tuple):
        return numbers * layers
    if len(numbers) != layers:
        raise ValueError(
            f"{what} holds {len(numbers)} values, expected {layers}: one per {kind}, or one number"
        )
    return numbers
