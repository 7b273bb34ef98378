"""What `generate` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openvino_genai import GenerationFinishReason

from ovspec.metrics import PerfMetrics


@dataclass(frozen=True, slots=True)
class DecodedResults:
    """Texts, for string inputs.

    Attributes:
        texts: one per prompt and returned sequence.
        scores: as openvino_genai has them without `logprobs`: 0.0.
        finish_reasons: why each sequence ended.
        perf_metrics: of the whole call.
    """

    texts: list[str]
    scores: list[float]
    finish_reasons: list[GenerationFinishReason]
    perf_metrics: PerfMetrics

    def __str__(self) -> str:
        return "\n".join(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


@dataclass(frozen=True, slots=True)
class EncodedResults:
    """Tokens, for tokenized inputs; fields as in `DecodedResults`, `tokens` without the prompt."""

    tokens: list[list[int]]
    scores: list[float]
    finish_reasons: list[GenerationFinishReason]
    perf_metrics: PerfMetrics
