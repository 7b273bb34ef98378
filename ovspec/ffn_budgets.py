"""Which operation computes gated MLPs, and which of their channels a pass may read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.tables import Rows
from ovspec.verify_config import SparseVerify
from ovspec_transforms import (
    CHANNEL_RULES,
    CHANNEL_SCORES,
    VERIFY_CHANNEL_LIMITS,
    VERIFY_ROW_WEIGHTS,
    ChannelRule,
    ChannelScore,
    FfnLayer,
    PassReport,
    ffn_layers,
    limit_channels,
    sparse_ffn,
)

FfnBackend = Literal["native", "stock"]


@dataclass(frozen=True, slots=True)
class FfnConfig:
    """How the gated MLPs of dense layers are computed.

    Attributes:
        backend: "native" replaces them by our operation, "stock" leaves them to OpenVINO.
        rule: how passes are limited, as in `ovspec_transforms.limit_channels`; `None` for a graph that has
            no limits.
        density: of the rules "top_k" and "static": share of a layer's channels that a pass reads, above 0 to
            1: one number, or one per gated MLP.
        threshold: of rule "threshold": lowest score of a channel that is read, 0 or above: one number, or one
            per gated MLP.
        score: what a channel's score is over the rows of a draft, "max" or "mean".
        decay: of score "mean": weight of a row by that of the one before it, above 0 to 1.
        orders: of rule "static": per gated MLP its channels, the most important first.

    Raises:
        ValueError: an unknown backend, rule or score, a limit that the rule does not take or misses, or a
            number out of range.
    """

    backend: FfnBackend = "native"
    rule: ChannelRule | None = None
    density: float | tuple[float, ...] | None = None
    threshold: float | tuple[float, ...] | None = None
    score: ChannelScore = "max"
    decay: float = 0.8
    orders: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("ffn", self.backend, ("native", "stock")),
            ("ffn rule", self.rule, (None, *CHANNEL_RULES)),
            ("ffn score", self.score, CHANNEL_SCORES),
        ):
            if value not in known:
                expected = ", ".join(repr(name) for name in known)
                raise ValueError(f"{what}={value!r}: expected one of {expected}")
        if self.backend == "stock" and self.rule is not None:
            raise ValueError(f"ffn rule {self.rule!r} with ffn='stock': limits need ffn='native'")
        for what, limit, rules in (
            ("density", self.density, ("top_k", "static")),
            ("threshold", self.threshold, ("threshold",)),
            ("orders", self.orders, ("static",)),
        ):
            if (limit is not None) != (self.rule in rules):
                raise ValueError(
                    f"ffn rule {self.rule!r} with ffn {what} {_short(limit)}: it belongs to "
                    + " and ".join(repr(rule) for rule in rules)
                )
        self._check_numbers()

    def _check_numbers(self) -> None:
        for density in _values(self.density):
            if not 0.0 < density <= 1.0:
                raise ValueError(f"ffn density {density}: expected a share above 0 and at most 1")
        for threshold in _values(self.threshold):
            if not math.isfinite(threshold) or threshold < 0.0:
                raise ValueError(f"ffn threshold {threshold}: expected a finite number of at least 0")
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(f"ffn decay {self.decay}: expected a number above 0 and at most 1")

    @property
    def graph(self) -> tuple[object, ...]:
        """What of it decides the graph; the other numbers are inputs of every pass."""
        return (self.backend, self.rule, self.score, self.orders)

    def transform(self, model: ov.Model) -> list[PassReport]:
        """Change the gated MLPs of `model` in place.

        Raises:
            ValueError: gated MLPs of a form that is not known, none at all, or limits that do not fit them.
        """
        layers = ffn_layers(model)
        if self.backend == "stock":
            if native := [layer.name for layer in layers if layer.native]:
                raise ValueError(
                    f"ffn='stock': layer {native[0]} is our operation already, as the model was exported "
                    "with --sparse-ffn; pass ffn='native', or export it without"
                )
            return []
        self.limits(layers)
        reports = [] if layers and all(layer.native for layer in layers) else [sparse_ffn(model)]
        if self.rule is None:
            return reports
        orders = [np.array(order, np.int32) for order in self.orders] if self.orders is not None else None
        return [*reports, limit_channels(model, self.rule, self.score, orders)]

    def limits(self, layers: Sequence[FfnLayer]) -> NDArray[np.float32]:
        """What `verify_channel_limits` is where the rule holds, f32 `[gated MLPs]`."""
        if self.rule == "threshold":
            return np.array(_per_layer("threshold", self.threshold, len(layers)), np.float32)
        if self.rule is None:
            return np.full(len(layers), -1, np.float32)
        densities = _per_layer("density", self.density, len(layers))
        kept = [max(1, round(share * layer.channels)) for share, layer in zip(densities, layers, strict=True)]
        return np.array(kept, np.float32)


def ffn_config(backend: FfnBackend, sparse: SparseVerify) -> FfnConfig | None:
    """What the channels' part of `sparse` asks of a graph, `None` where it limits nothing."""
    if not sparse.limits_channels:
        return None
    score = sparse.ffn_score or "max"
    if sparse.ffn_threshold is not None:
        return FfnConfig(backend, "threshold", threshold=sparse.ffn_threshold, score=score)
    return FfnConfig(backend, "top_k", density=sparse.ffn_density, score=score)


def _short(value: object) -> str:
    return f"of {len(value)} values" if isinstance(value, tuple) else str(value)


def _values(value: float | tuple[float, ...] | None) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _per_layer(what: str, value: float | tuple[float, ...] | None, layers: int) -> list[float]:
    values = _values(value)
    if not isinstance(value, tuple):
        return list(values) * layers
    if len(values) != layers:
        raise ValueError(
            f"ffn {what} holds {len(values)} values, expected {layers}: one per gated MLP, or one number"
        )
    return list(values)


class FfnLimits:
    """The channel limits of every pass.

    Args:
        config: how passes are limited; it has a rule.
        layers: the model's gated MLPs.
    """

    def __init__(self, config: FfnConfig, layers: Sequence[FfnLayer]) -> None:
        self._limits = config.limits(layers)
        self._none = np.full(len(layers), -1, np.float32)
        self._decay = config.decay

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {VERIFY_CHANNEL_LIMITS, VERIFY_ROW_WEIGHTS}

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`verify_channel_limits` and `verify_row_weights` of a pass."""
        weights = [self._row_weights(rows) for rows in batch]
        limited = any(rows.limits_channels for rows in batch)
        return {
            VERIFY_CHANNEL_LIMITS: self._limits if limited else self._none,
            VERIFY_ROW_WEIGHTS: np.concatenate(weights).astype(np.float32),
        }

    def _row_weights(self, rows: Rows) -> NDArray[np.float64]:
        """0 for rows that are not limited, else the less, the more tokens must be accepted before."""
        if not rows.limits_channels:
            return np.zeros(len(rows.tokens))
        return np.asarray(self._decay ** (rows.positions - rows.sequence.length))
