"""Calibration of attention, experts and channels to a target KL on a user's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.calibrate.calibration import Observer
from ovspec.calibrate.channel_statistics import ChannelStatistics
from ovspec.calibrate.expert_statistics import ExpertStatistics
from ovspec.calibrate.fidelity_meter import FidelityMeter
from ovspec.calibrate.fidelity_search import Found, Part, attention_part, channel_part, expert_part, search
from ovspec.engine.routing import sparse_attention
from ovspec.operations.expert_budgets import ExpertConfig, expert_config
from ovspec.operations.ffn_budgets import ffn_config
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import AMOUNT_FIELDS, SparseVerify
from ovspec_transforms import ffn_layers, moe_layers


class TargetCalibration:
    """Searches settings for every part that the user did not set.

    The model is extended by the observed outputs. `experts` and `channels` are the statistics of what is
    searched, `None` of what is not.
    """

    def __init__(self, given: SparseVerify, model: ov.Model) -> None:
        self._given = given
        open_experts = given.expert_budget is None and bool(moe_layers(model))
        open_channels = given.ffn_density is None and bool(ffn_layers(model))
        self.experts = ExpertStatistics(model) if open_experts else None
        self.channels = ChannelStatistics(model) if open_channels else None

    @property
    def observers(self) -> list[Observer]:
        """The observers of the verification passes."""
        return [observer for observer in (self.experts, self.channels) if observer]

    def _parts(self) -> list[Part]:
        """The parts to search, with candidates from the statistics."""
        parts = [] if self._given.given(AMOUNT_FIELDS) else [attention_part()]
        if self.experts:
            parts.append(expert_part(self.experts))
        if self.channels:
            parts.append(channel_part(self.channels))
        return parts

    def search(
        self,
        folder: Path,
        selecting: SparseVerify,
        texts: Sequence[NDArray[np.int64]],
        positions: int,
        target: float,
        properties: Mapping[str, object],
    ) -> Found:
        """Measure candidates until all parts together meet the target.

        Args:
            selecting: the rule of selection.
            texts: i64 `[tokens]` each, at least one of 3 or more.
            positions: number of positions to compare, over all texts.
            target: mean KL per position, nats.
        """
        parts = self._parts()
        experts = expert_config("native", _first("experts", parts, self._given))
        runner = ModelRunner(
            folder,
            "CPU",
            replace(sparse_attention("native", selecting), coverage=1.0),
            properties,
            experts=experts or ExpertConfig(optional=True),
            ffn=ffn_config("native", _first("channels", parts, self._given)),
        )
        meter = FidelityMeter(runner, texts, max(1, positions // len(texts)))
        names = ("rule", "anchor_layers", "sink_blocks", "local_blocks")
        base = replace(self._given, **{name: getattr(selecting, name) for name in names})
        return search(meter.measure, base, parts, target)


def _first(name: str, parts: Sequence[Part], given: SparseVerify) -> SparseVerify:
    """The user's settings with the first candidate of a part, whose rule is that of all candidates."""
    fields: dict[str, Any] = next((p.candidates[0] for p in parts if p.name == name and p.candidates), {})
    return replace(given, **fields)
