"""What `generate` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openvino_genai import GenerationFinishReason

from ovspec.generation.metrics import PerfMetrics


@dataclass(frozen=True, slots=True)
class DecodedResults:
    """Texts, for string inputs.

    Attributes:
        texts: one per prompt and returned sequence.
        scores: 0.0, as in openvino_genai without `logprobs`.
        finish_reasons: why each sequence ended.
        perf_metrics: of the whole call.
    """

    texts: list[str]
    scores: list[float]
    finish_reasons: list[GenerationFinishReason]
    perf_metrics: PerfMetrics

    @property
    def parsed(self) -> list[object]:
        """Results of parsers: empty, because parsers are not supported."""
        return []

    @property
    def extended_perf_metrics(self) -> PerfMetrics | None:
        """`perf_metrics` if drafts were verified; else `None`, because its draft figures mean nothing."""
        return _extended(self.perf_metrics)

    def __str__(self) -> str:
        if len(self.texts) == 1:
            return self.texts[0]
        # As openvino_genai prints several texts: each after its score.
        return "\n".join(f"{score:f}: {text}" for score, text in zip(self.scores, self.texts, strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


@dataclass(frozen=True, slots=True)
class EncodedResults:
    """Tokens, for tokenized inputs; fields as in `DecodedResults`, `tokens` without the prompt."""

    tokens: list[list[int]]
    scores: list[float]
    finish_reasons: list[GenerationFinishReason]
    perf_metrics: PerfMetrics

    @property
    def extended_perf_metrics(self) -> PerfMetrics | None:
        """As in `DecodedResults`."""
        return _extended(self.perf_metrics)


def _extended(metrics: PerfMetrics) -> PerfMetrics | None:
    return metrics if metrics.raw_metrics.num_drafts else None
