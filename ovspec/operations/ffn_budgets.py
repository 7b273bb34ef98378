"""Which operation computes gated MLPs, and how many of their channels a pass may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.per_layer import per_layer
from ovspec.passes.tables import Rows
from ovspec_models.folder.sparse_verify import SparseVerify, numbers_of
from ovspec_transforms import (
    VERIFY_CHANNEL_LIMITS,
    VERIFY_ROW_WEIGHTS,
    FfnLayer,
    TransformReport,
    ffn_layers,
    limit_channels,
    sparse_ffn,
)

FfnBackend = Literal["native", "stock"]


@dataclass(frozen=True, slots=True)
class FfnConfig:
    """How the gated MLPs of dense layers are computed.

    Attributes:
        backend: "native" replaces them by our operation, "stock" leaves them to OpenVINO's.
        density: share of a layer's channels that a limited pass reads, above 0 to 1: one number, or one per
            gated MLP. `None` makes a graph without limits. "native" only.

    Raises:
        ValueError: an unknown backend, a density with "stock", or a density out of range.
    """

    backend: FfnBackend = "native"
    density: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("native", "stock"):
            raise ValueError(f"ffn={self.backend!r}: expected 'native' or 'stock'")
        if self.backend == "stock" and self.density is not None:
            raise ValueError(
                f"ffn density {self.density} with ffn='stock': only our operation limits channels; pass "
                "ffn='native', or leave the density out"
            )
        for density in numbers_of(self.density):
            if not 0.0 < density <= 1.0:
                raise ValueError(f"ffn density {density}: expected a share above 0 and at most 1")

    @property
    def limits(self) -> bool:
        """Whether the graph can limit channels."""
        return self.density is not None

    @property
    def graph(self) -> tuple[object, ...]:
        """The fields that decide the graph; the density is an input of every pass."""
        return (self.backend, self.limits)

    def transform(self, model: ov.Model, gates_apart: bool = False) -> list[TransformReport]:
        """Change the gated MLPs of `model` in place.

        Args:
            gates_apart: whether another operation computes the gates' products, as in `sparse_ffn`.

        Raises:
            ValueError: gated MLPs of an unknown form, none at all, or densities of another number of layers.
        """
        layers = ffn_layers(model)
        native = [layer.name for layer in layers if layer.native]
        if self.backend == "stock" and native:
            raise ValueError(
                f"ffn='stock': layer {native[0]} is our operation already, as the model was exported "
                "with --sparse-ffn; pass ffn='native', or export it without"
            )
        if self.backend == "stock":
            return []
        self.channels_kept(layers)
        made = layers and len(native) == len(layers)
        reports = [] if made else [sparse_ffn(model, gates_apart=gates_apart)]
        return [*reports, limit_channels(model)] if self.limits else reports

    def channels_kept(self, layers: Sequence[FfnLayer]) -> NDArray[np.float32]:
        """`verify_channel_limits` of a limited pass, f32 `[gated MLPs]`; -1 without a density.

        Raises:
            ValueError: densities of another number of layers.
        """
        if self.density is None:
            return np.full(len(layers), -1, np.float32)
        densities = per_layer("ffn density", self.density, len(layers), "gated MLP")
        kept = [max(1, round(share * layer.channels)) for share, layer in zip(densities, layers, strict=True)]
        return np.array(kept, np.float32)


def ffn_config(backend: FfnBackend | None, sparse: SparseVerify) -> FfnConfig | None:
    """The configuration that `sparse` needs; `None` if it does not limit channels.

    Raises:
        ValueError: as `FfnConfig`.
    """
    return FfnConfig(backend or "native", sparse.ffn_density) if sparse.limits_channels else None


class FfnLimits:
    """Inputs of a pass that limit channels, and their `names`."""

    def __init__(self, config: FfnConfig, layers: Sequence[FfnLayer]) -> None:
        self.names = {VERIFY_CHANNEL_LIMITS, VERIFY_ROW_WEIGHTS}
        self._limits = config.channels_kept(layers)
        self._none = np.full(len(layers), -1, np.float32)

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`verify_channel_limits` and `verify_row_weights` of a pass; weight 0 marks a row without limits."""
        weights = [np.full(len(rows.tokens), rows.limits_channels, np.float32) for rows in batch]
        limited = any(rows.limits_channels for rows in batch)
        return {
            VERIFY_CHANNEL_LIMITS: self._limits if limited else self._none,
            VERIFY_ROW_WEIGHTS: np.concatenate(weights),
        }
