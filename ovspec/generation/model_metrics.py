"""Durations of one model's passes, under the names that openvino_genai's users know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ovspec.generation.raw_metrics import RawPerfMetrics


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


class Summary(NamedTuple):
    """Moments and limits of a series of durations, in milliseconds."""

    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> Summary:
        """Of durations in microseconds; -1 for an empty series, as openvino_genai has it."""
        if not values:
            return cls(-1.0, -1.0, -1.0, -1.0)
        return cls(*MeanStdPair.of(values), min(values) / 1e3, max(values) / 1e3)

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Mean, standard deviation, least and largest."""
        return self.mean, self.std, self.min, self.max


@dataclass(frozen=True, slots=True)
class ModelPerfMetrics:
    """Passes of the target, or rounds of its drafter, in milliseconds under openvino_genai's names.

    What only a whole call has, such as tokenization, is -1, as in openvino_genai.

    Attributes:
        prefills: microseconds of reading each prompt; of a drafter, which reads it in its rounds, its first.
        passes: microseconds of each pass, or round, after that.
        num_generated_tokens: tokens that they made.
    """

    prefills: list[float]
    passes: list[float]
    num_generated_tokens: int

    @property
    def raw_metrics(self) -> RawPerfMetrics:
        """`m_durations` are those of all passes, the prompts' first; a call's other series are empty."""
        spent = [sum(self.prefills) + sum(self.passes)]
        return RawPerfMetrics(
            generate_durations=spent,
            inference_durations=spent,
            m_times_to_first_token=self.prefills,
            m_durations=[*self.prefills, *self.passes],
        )

    def get_num_generated_tokens(self) -> int:
        """Tokens that were emitted, or drafted."""
        return self.num_generated_tokens

    def get_inference_duration(self) -> MeanStdPair:
        """Time of all passes."""
        return MeanStdPair((sum(self.prefills) + sum(self.passes)) / 1e3, 0.0)

    def get_generate_duration(self) -> MeanStdPair:
        """The same: a model is timed in its passes only."""
        return self.get_inference_duration()

    def get_ttft(self) -> MeanStdPair:
        """Time of reading a prompt."""
        return MeanStdPair.of(self.prefills)

    def get_ttst(self) -> MeanStdPair:
        """Time of the first pass after a prompt."""
        return MeanStdPair.of(self.passes[:1])

    def get_latency(self) -> MeanStdPair:
        """Time of a pass after the prompt."""
        return MeanStdPair.of(self.passes)

    def get_tpot(self) -> MeanStdPair:
        """Time of the passes per token."""
        if not self.passes or not self.num_generated_tokens:
            return MeanStdPair(-1.0, -1.0)
        return MeanStdPair(sum(self.passes) / 1e3 / self.num_generated_tokens, 0.0)

    def get_ipot(self) -> MeanStdPair:
        """Time of all passes per token."""
        if not self.num_generated_tokens:
            return MeanStdPair(-1.0, -1.0)
        return MeanStdPair(self.get_inference_duration().mean / self.num_generated_tokens, 0.0)

    def get_throughput(self) -> MeanStdPair:
        """Tokens per second of the passes."""
        tpot = self.get_tpot().mean
        return MeanStdPair(1e3 / tpot, 0.0) if tpot > 0 else MeanStdPair(-1.0, -1.0)

    def get_load_time(self) -> float:
        """0.0: models of a pipeline are loaded together; the call's metrics have it."""
        return 0.0

    def get_num_input_tokens(self) -> int:
        """0: the call's metrics have them."""
        return 0

    def get_tokenization_duration(self) -> MeanStdPair:
        """Of the call."""
        return MeanStdPair.of([])

    def get_detokenization_duration(self) -> MeanStdPair:
        """Of the call."""
        return MeanStdPair.of([])

    def get_chat_template_duration(self) -> MeanStdPair:
        """Of the call."""
        return MeanStdPair.of([])

    def get_sampling_duration(self) -> MeanStdPair:
        """Of the call."""
        return MeanStdPair.of([])
