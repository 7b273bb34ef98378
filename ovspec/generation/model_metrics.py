"""Durations of one model's passes, under the names that openvino_genai's users know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class MeanStdPair(NamedTuple):
    """Mean and standard deviation of a series, in milliseconds where it is of durations."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: list[float]) -> MeanStdPair:
        """Moments of durations in microseconds; -1 for an empty series, as openvino_genai has it."""
        if not values:
            return cls(-1.0, -1.0)
        return cls(float(np.mean(values)) / 1e3, float(np.std(values)) / 1e3)


@dataclass(frozen=True, slots=True)
class ModelPerfMetrics:
    """Passes of the target, or rounds of its drafter, in milliseconds under openvino_genai's names.

    Attributes:
        prefills: microseconds of reading each prompt; empty for a drafter, which reads it in its rounds.
        passes: microseconds of each pass, or round, after that.
        num_generated_tokens: tokens that they made.
    """

    prefills: list[float]
    passes: list[float]
    num_generated_tokens: int

    def get_num_generated_tokens(self) -> int:
        """Tokens that were emitted, or drafted."""
        return self.num_generated_tokens

    def get_inference_duration(self) -> MeanStdPair:
        """Time of all passes."""
        return MeanStdPair((sum(self.prefills) + sum(self.passes)) / 1e3, 0.0)

    def get_ttft(self) -> MeanStdPair:
        """Time of reading a prompt."""
        return MeanStdPair.of(self.prefills)

    def get_latency(self) -> MeanStdPair:
        """Time of a pass after the prompt."""
        return MeanStdPair.of(self.passes)

    def get_tpot(self) -> MeanStdPair:
        """Time of the passes per token."""
        if not self.passes or not self.num_generated_tokens:
            return MeanStdPair(-1.0, -1.0)
        return MeanStdPair(sum(self.passes) / 1e3 / self.num_generated_tokens, 0.0)

    def get_throughput(self) -> MeanStdPair:
        """Tokens per second of the passes."""
        tpot = self.get_tpot().mean
        return MeanStdPair(1e3 / tpot, 0.0) if tpot > 0 else MeanStdPair(-1.0, -1.0)
