"""What `generate` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import openvino_genai
from openvino_genai import GenerationFinishReason

from ovspec.generation.metrics import PerfMetrics

#: OpenAI's words for why an answer ended, for what is written to people and files.
FINISH_WORDS = {
    GenerationFinishReason.NONE: None,
    GenerationFinishReason.STOP: "stop",
    GenerationFinishReason.LENGTH: "length",
    GenerationFinishReason.TOOL_CALL: "tool_calls",
}


class DecodedResults(openvino_genai.DecodedResults):
    """Texts, for string inputs; an instance of openvino_genai's class too.

    Attributes:
        texts: one per prompt and returned sequence.
        scores: of beams, the best first; else sums of the answers' log probabilities with `logprobs`, or 0.0.
        finish_reasons: why each sequence ended.
        perf_metrics: of the whole call.
        parsed: the message of a `TextParserStreamer`'s parsers; empty without one.
    """

    def __init__(
        self,
        texts: list[str],
        scores: list[float],
        finish_reasons: list[GenerationFinishReason],
        perf_metrics: PerfMetrics,
        parsed: Sequence[dict[str, object]] = (),
    ) -> None:
        super().__init__()
        self._texts, self._scores, self._finish_reasons = texts, scores, finish_reasons
        self._perf_metrics, self._parsed = perf_metrics, list(parsed)

    # openvino_genai's fields are properties without setters.
    texts = property(lambda self: self._texts)
    scores = property(lambda self: self._scores)
    finish_reasons = property(lambda self: self._finish_reasons)
    perf_metrics = property(lambda self: self._perf_metrics)
    parsed = property(lambda self: self._parsed)

    @property
    def extended_perf_metrics(self) -> PerfMetrics | None:
        """`perf_metrics` if drafts were verified; else `None`, because its draft figures mean nothing."""
        return _extended(self.perf_metrics)

    def __str__(self) -> str:
        if len(self.texts) == 1:
            return str(self.texts[0])
        # As openvino_genai prints several: each behind its score.
        return "\n".join(f"{score:f}: {text}" for score, text in zip(self.scores, self.texts, strict=True))

    def __repr__(self) -> str:
        return f"DecodedResults(texts={self.texts!r}, scores={self.scores!r})"

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __reduce__(self) -> tuple[type[DecodedResults], tuple[object, ...]]:
        # openvino_genai's class can't be pickled, and so not be sent to another process.
        given = (self._texts, self._scores, self._finish_reasons, self._perf_metrics, self._parsed)
        return DecodedResults, given


@dataclass(frozen=True, slots=True)
class EncodedResults:
    """Tokens, for tokenized inputs; fields as in `DecodedResults`, `tokens` without the prompt.

    No instance of openvino_genai's class of that name, which has no constructor.
    """

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
