"""``ovspec_channels.npz``: feed-forward channels by importance and in groups, as calibration found them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_models.files import replace_file

CHANNELS_NAME = "ovspec_channels.npz"
_KINDS = ("order", "groups", "probes")


@dataclass(frozen=True, slots=True, eq=False)
class ChannelSets:
    """Channels of every gated MLP of a model; the numbers are for the model that they were measured on.

    Attributes:
        orders: per gated MLP its channels i32 ``[channels]``, the most important first.
        groups: channels that are active together, i32 ``[groups, channels of a group]``; empty where none
            were made.
        probes: channels whose gates stand for a group's, i32 ``[groups, probes]``; empty likewise.
    """

    orders: tuple[NDArray[np.int32], ...]
    groups: tuple[NDArray[np.int32], ...] = ()
    probes: tuple[NDArray[np.int32], ...] = ()

    @classmethod
    def load(cls, folder: str | Path) -> ChannelSets | None:
        """Read ``folder/ovspec_channels.npz``; ``None`` when the file is absent.

        Raises ValueError, in one line that names the file, for one that calibration did not write.
        """
        path = Path(folder) / CHANNELS_NAME
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                kinds = {kind: _layers(dict(arrays), kind) for kind in _KINDS}
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path}: not a file of channels ({error}); run `ovspec calibrate` again"
            ) from None
        sets = cls(kinds["order"], kinds["groups"], kinds["probes"])
        if (
            not sets.orders
            or len(sets.groups) != len(sets.probes)
            or len(sets.groups) not in (0, len(sets.orders))
        ):
            raise ValueError(f"{path}: layers are missing in it; run `ovspec calibrate` again")
        return sets

    def save(self, folder: str | Path) -> Path:
        """Write ``folder/ovspec_channels.npz`` atomically and return its path."""
        arrays: dict[str, NDArray[np.int32]] = {}
        for kind, layers in zip(_KINDS, (self.orders, self.groups, self.probes), strict=True):
            arrays |= {f"{kind}.{layer}": values for layer, values in enumerate(layers)}
        buffer = io.BytesIO()
        np.savez(buffer, **_as_any(arrays))
        path = Path(folder) / CHANNELS_NAME
        replace_file(path, buffer.getvalue())
        return path


def _as_any(arrays: dict[str, NDArray[np.int32]]) -> dict[str, Any]:
    return dict(arrays)


def _layers(arrays: dict[str, NDArray[Any]], kind: str) -> tuple[NDArray[np.int32], ...]:
    count = sum(name.startswith(f"{kind}.") for name in arrays)
    layers: Sequence[NDArray[Any]] = [arrays[f"{kind}.{layer}"] for layer in range(count)]
    dimensions = 1 if kind == "order" else 2
    for layer, values in enumerate(layers):
        if values.ndim != dimensions or values.dtype != np.int32:
            raise ValueError(f"{kind}.{layer} is {values.dtype} of {values.ndim} dimensions")
    return tuple(layers)
