"""Which operation computes gated MLPs, and which of their channels a pass may read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.tables import Rows
from ovspec.verify.verify_config import SparseVerify
from ovspec_models import CHANNELS_NAME, ChannelSets
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
    group_ffn_channels,
    leading_parts,
    limit_channels,
    sparse_ffn,
)

FfnBackend = Literal["native", "stock"]
# Rules that OpenVINO's operations follow, with channels that were calibrated.
STOCK_RULES = ("static", "groups")


@dataclass(frozen=True, slots=True)
class FfnConfig:
    """How the gated MLPs of dense layers are computed.

    Attributes:
        backend: "native" replaces them by our operation, "stock" leaves them to OpenVINO's.
        rule: how passes are limited: "threshold", "top_k" and "static" as in
            `ovspec_transforms.limit_channels`, natively; "static" and "groups" as in
            `ovspec_transforms.group_ffn_channels`, with stock operations. `None` for a graph without limits.
        density: of all rules but "threshold": share of a layer's channels that a pass reads, above 0 to 1:
            one number, or one per gated MLP. "groups" rounds it to whole groups, "static" with stock
            operations to as many of every block of channels that share a scale.
        threshold: of rule "threshold": lowest score of a channel that is read, 0 or above: one number, or one
            per gated MLP.
        score: of the rules "threshold" and "top_k": what a channel's score is over the rows of a draft, "max"
            or "mean".
        decay: of score "mean": weight of a row by that of the one before it, above 0 to 1.
        channels: of the rules "static" and "groups": what calibration found.

    Raises:
        ValueError: an unknown backend, rule or score, a limit that the rule does not take or misses, or a
            number out of range.
    """

    backend: FfnBackend = "native"
    rule: ChannelRule | Literal["groups"] | None = None
    density: float | tuple[float, ...] | None = None
    threshold: float | tuple[float, ...] | None = None
    score: ChannelScore = "max"
    decay: float = 0.8
    channels: ChannelSets | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("ffn", self.backend, ("native", "stock")),
            ("ffn rule", self.rule, (None, *CHANNEL_RULES, "groups")),
            ("ffn score", self.score, CHANNEL_SCORES),
        ):
            if value not in known:
                expected = ", ".join(repr(name) for name in known)
                raise ValueError(f"{what}={value!r}: expected one of {expected}")
        if self.backend == "stock" and self.rule not in (None, *STOCK_RULES):
            raise ValueError(
                f"ffn rule {self.rule!r} with ffn='stock': it needs ffn='native'; OpenVINO's operations "
                "limit channels by the rules 'static' and 'groups'"
            )
        if self.backend == "native" and self.rule == "groups":
            raise ValueError("ffn rule 'groups' with ffn='native': it needs ffn='stock'")
        for what, limit, rules in (
            ("density", self.density, ("top_k", "static", "groups")),
            ("threshold", self.threshold, ("threshold",)),
            ("channels", self.channels, ("static", "groups")),
        ):
            if (limit is not None) != (self.rule in rules):
                raise ValueError(
                    f"ffn rule {self.rule!r} with ffn {what} {_short(limit)}: it belongs to "
                    + " and ".join(repr(rule) for rule in rules)
                )
        if self.rule == "groups" and self.channels is not None and not self.channels.groups:
            raise ValueError(
                "ffn rule 'groups': the model's channels were calibrated without groups; run `ovspec "
                "calibrate` with --ffn-rule groups"
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
        parts = self.density if self.rule == "static" and self.backend == "stock" else None
        found = self.channels.fingerprint() if self.channels else None
        return (self.backend, self.rule, self.score, parts, found)

    @property
    def built_for(self) -> str:
        """What a graph is made for, in words; other numbers can be set anew."""
        if self.rule == "static" and self.backend == "stock":
            return f"rule 'static' with weights in parts of density {self.density}"
        if self.rule in STOCK_RULES:
            return f"rule {self.rule!r}"
        return f"rule {self.rule!r} of the {self.score} score"

    def transform(self, model: ov.Model, gates_apart: bool = False) -> list[PassReport]:
        """Change the gated MLPs of `model` in place.

        Args:
            model: changed in place.
            gates_apart: whether gates' products are for another operation, as in `sparse_ffn`.

        Raises:
            ValueError: gated MLPs of a form that is not known, none at all, or limits that do not fit them.
        """
        layers = ffn_layers(model)
        native = [layer.name for layer in layers if layer.native]
        if self.backend == "stock" and native:
            raise ValueError(
                f"ffn='stock': layer {native[0]} is our operation already, as the model was exported "
                "with --sparse-ffn; pass ffn='native', or export it without"
            )
        self.limits(layers)
        if self.backend == "stock":
            return [] if self.rule is None else [self._group(model, layers)]
        made = layers and len(native) == len(layers)
        reports = [] if made else [sparse_ffn(model, gates_apart=gates_apart)]
        if self.rule is None:
            return reports
        assert self.rule != "groups"
        orders = self.channels.orders if self.channels else None
        return [*reports, limit_channels(model, self.rule, self.score, orders)]

    def _group(self, model: ov.Model, layers: Sequence[FfnLayer]) -> PassReport:
        """Part the channels with stock operations."""
        assert self.channels is not None
        if self.rule == "groups":
            parts = [list(groups) for groups in self.channels.groups]
            return group_ffn_channels(model, parts, self.channels.estimates)
        return group_ffn_channels(model, self._leading(layers))

    def _leading(self, layers: Sequence[FfnLayer]) -> list[list[NDArray[np.int32]]]:
        assert self.channels is not None
        densities = _per_layer("density", self.density, len(layers))
        return [
            leading_parts(order, share, layer.blocks)
            for order, share, layer in zip(self.channels.orders, densities, layers, strict=True)
        ]

    def limits(self, layers: Sequence[FfnLayer]) -> NDArray[np.float32]:
        """What `verify_channel_limits` is where the rule holds, f32 `[gated MLPs]`."""
        if self.rule == "threshold":
            return np.array(_per_layer("threshold", self.threshold, len(layers)), np.float32)
        if self.rule is None:
            return np.full(len(layers), -1, np.float32)
        self._check_sets(layers)
        densities = _per_layer("density", self.density, len(layers))
        if self.backend == "stock" and self.rule == "static":
            return np.array([len(parts[0]) for parts in self._leading(layers)], np.float32)
        sizes = [1] * len(layers)
        if self.rule == "groups" and self.channels is not None:
            sizes = [groups.shape[1] for groups in self.channels.groups]
        kept = [
            max(1, round(share * layer.channels / size)) * size
            for share, layer, size in zip(densities, layers, sizes, strict=True)
        ]
        return np.array(kept, np.float32)

    def _check_sets(self, layers: Sequence[FfnLayer]) -> None:
        """Refuse channels that were calibrated for another model."""
        if self.channels is None:
            return
        found = [order.size for order in self.channels.orders]
        expected = [layer.channels for layer in layers]
        if found != expected:
            raise ValueError(
                f"ffn rule {self.rule!r}: {CHANNELS_NAME} holds channels of {_sizes(found)}, this "
                f"model's gated MLPs have {_sizes(expected)}; run `ovspec calibrate` for it"
            )


def ffn_config(
    backend: FfnBackend | None, sparse: SparseVerify, channels: ChannelSets | None = None
) -> FfnConfig | None:
    """What the channels' part of `sparse` asks of a graph, `None` where it limits nothing.

    Args:
        backend: `None` is the one that serves the rule best: "stock" for "static" and "groups".
        sparse: the setting.
        channels: as calibrated for the model, for these two.

    Raises:
        ValueError: a rule that the backend does not know, or channels that were not calibrated.
    """
    if not sparse.limits_channels:
        return None
    score = sparse.ffn_score or "max"
    if sparse.ffn_threshold is not None:
        return FfnConfig(backend or "native", "threshold", threshold=sparse.ffn_threshold, score=score)
    rule = sparse.ffn_rule or "top_k"
    if rule == "top_k":
        return FfnConfig(backend or "native", rule, density=sparse.ffn_density, score=score)
    if channels is None:
        raise ValueError(
            f"ffn_rule={rule!r}: the model's channels were not calibrated; run `ovspec calibrate -m DIR "
            f"--data TEXTS.jsonl --ffn-rule {rule}`"
        )
    return FfnConfig(backend or "stock", rule, density=sparse.ffn_density, channels=channels)


def calibrated_channels(folder: str | Path, passes: Iterable[SparseVerify]) -> ChannelSets | None:
    """The channels that were calibrated for the model of a folder, where a setting goes by them."""
    wanted = any(sparse.limits_channels and sparse.ffn_rule in STOCK_RULES for sparse in passes)
    return ChannelSets.load(folder) if wanted else None


def _short(value: object) -> str:
    if isinstance(value, ChannelSets):
        return f"of {len(value.orders)} layers"
    return f"of {len(value)} values" if isinstance(value, tuple) else str(value)


def _sizes(channels: Sequence[int]) -> str:
    distinct = sorted(set(channels))
    return f"{len(channels)} x {' or '.join(map(str, distinct))}"


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
        self._decay, self._backend = config.decay, config.backend

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {VERIFY_CHANNEL_LIMITS, VERIFY_ROW_WEIGHTS}

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`verify_channel_limits` and `verify_row_weights` of a pass.

        Our operation leaves rows out that are not limited; stock operations can't, so there a pass with any
        such row has no limits.
        """
        weights = [self._row_weights(rows) for rows in batch]
        limits = [rows.limits_channels for rows in batch]
        limited = any(limits) if self._backend == "native" else all(limits)
        return {
            VERIFY_CHANNEL_LIMITS: self._limits if limited else self._none,
            VERIFY_ROW_WEIGHTS: np.concatenate(weights).astype(np.float32),
        }

    def _row_weights(self, rows: Rows) -> NDArray[np.float64]:
        """0 for rows that are not limited, else the less, the more tokens must be accepted before."""
        if not rows.limits_channels:
            return np.zeros(len(rows.tokens))
        return np.asarray(self._decay ** (rows.positions - rows.sequence.length))
