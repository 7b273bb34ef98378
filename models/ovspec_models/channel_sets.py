"""``ovspec_channels.npz``: feed-forward channels by importance and in groups, as calibration found them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_models.files import replace_file
from ovspec_transforms import GroupEstimate

CHANNELS_NAME = "ovspec_channels.npz"
# What the file holds of a layer: type and dimensions.
_ARRAYS = {
    "order": (np.int32, 1),
    "groups": (np.int32, 2),
    "probes": (np.int32, 1),
    "weights": (np.float32, 2),
    "bias": (np.float32, 1),
}


@dataclass(frozen=True, slots=True, eq=False)
class ChannelSets:
    """Channels of every gated MLP of the model that they were measured on.

    Attributes:
        orders: per gated MLP its channels i32 ``[channels]``, the most important first.
        groups: channels that are active together, i32 ``[groups, channels of a group]``; empty where channels
            were not grouped.
        estimates: how much a pass needs each group; empty likewise.
    """

    orders: tuple[NDArray[np.int32], ...]
    groups: tuple[NDArray[np.int32], ...] = ()
    estimates: tuple[GroupEstimate, ...] = ()

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
                return cls._of(dict(arrays))
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path}: not what calibration writes ({error}); run `ovspec calibrate` again"
            ) from None

    @classmethod
    def _of(cls, arrays: Mapping[str, NDArray[Any]]) -> ChannelSets:
        layers = sum(name.startswith("order.") for name in arrays)
        for name, values in arrays.items():
            dtype, dimensions = _ARRAYS[name.partition(".")[0]]
            if values.dtype != dtype or values.ndim != dimensions:
                raise ValueError(f"{name} is {values.dtype} of {values.ndim} dimensions")
        grouped = len(arrays) > layers
        if not layers or len(arrays) != layers * (len(_ARRAYS) if grouped else 1):
            raise ValueError(f"{len(arrays)} arrays for {layers} layers")
        orders = tuple(arrays[f"order.{layer}"] for layer in range(layers))
        for layer, order in enumerate(orders):
            if not np.array_equal(np.sort(order), np.arange(len(order))):
                raise ValueError(f"order.{layer} does not hold each of {len(order)} channels once")
        if not grouped:
            return cls(orders)
        groups = tuple(arrays[f"groups.{layer}"] for layer in range(layers))
        estimates = (
            GroupEstimate(*(arrays[f"{kind}.{layer}"] for kind in ("probes", "weights", "bias")))
            for layer in range(layers)
        )
        return cls(orders, groups, tuple(estimates))

    def fingerprint(self) -> str:
        """A text that other sets do not have."""
        digest = hashlib.sha256()
        for name, array in self._arrays().items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What the file holds."""
        arrays: dict[str, NDArray[Any]] = {f"order.{layer}": order for layer, order in enumerate(self.orders)}
        for layer, (groups, estimate) in enumerate(zip(self.groups, self.estimates, strict=True)):
            arrays[f"groups.{layer}"] = groups
            for kind in ("probes", "weights", "bias"):
                arrays[f"{kind}.{layer}"] = getattr(estimate, kind)
        return arrays

    def save(self, folder: str | Path) -> Path:
        """Write ``folder/ovspec_channels.npz`` atomically and return its path."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = self._arrays()
        np.savez(buffer, **arrays)
        path = Path(folder) / CHANNELS_NAME
        replace_file(path, buffer.getvalue())
        return path
