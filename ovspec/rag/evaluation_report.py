"""What an evaluation found, with 95% intervals over the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from ovspec.eval.tables import table_of
from ovspec.rag.evaluation import CACHED, PLAIN, SPECULATIVE, WAYS, Example
from ovspec.rag.interval import Figures, Interval


class EvaluationReport:
    """Accuracy, latency and tokens of the target for every way to answer, and each compared with plain RAG.

    Args:
        examples: at least one.
        setting: models, store and settings, for the JSON.
    """

    def __init__(self, examples: Sequence[Example], setting: dict[str, Any] | None = None) -> None:
        self.examples, self._setting = list(examples), setting or {}

    def accuracy(self, way: str) -> Interval:
        """Share of the answers that contain one of the question's; Wilson's interval."""
        return self._share([example.outcomes[way].correct for example in self.examples])

    def latency(self, way: str) -> Interval:
        """Median milliseconds."""
        return Interval.of_paired(self._latencies(way), self._latencies(way), _median_of_first)

    def target_tokens(self, way: str) -> Interval:
        """Mean tokens that the target computed."""
        return Interval.of_paired(self._tokens(way), self._tokens(way), _mean_of_first)

    def accuracy_difference(self, way: str, other: str = PLAIN) -> Interval:
        """Accuracy less that of another way, over the same questions."""
        ours, theirs = ([float(e.outcomes[name].correct) for e in self.examples] for name in (way, other))
        return Interval.of_paired(ours, theirs, _mean_difference)

    def latency_ratio(self, way: str, other: str = PLAIN) -> Interval:
        """Median ratio of the latencies of a question."""
        return Interval.of_paired(self._latencies(way), self._latencies(other), _median_ratio)

    def token_ratio(self, way: str, other: str = PLAIN) -> Interval:
        """Mean tokens of the target by those of another way."""
        return Interval.of_paired(self._tokens(way), self._tokens(other), _ratio_of_means)

    def tables(self) -> list[Table]:
        """The figures of every way, and the comparisons with plain RAG."""
        count = f"{len(self.examples)} questions"
        rows = [
            (
                way,
                self.accuracy(way).shown(".3f"),
                self.latency(way).shown(".0f"),
                self.target_tokens(way).shown(".0f"),
            )
            for way in WAYS
        ]
        compared = [
            (
                f"{way} / {other}",
                self.accuracy_difference(way, other).shown("+.3f"),
                self.latency_ratio(way, other).shown(".2f"),
                self.token_ratio(way, other).shown(".3f"),
            )
            for way, other in ((SPECULATIVE, PLAIN), (CACHED, PLAIN), (CACHED, SPECULATIVE))
        ]
        columns = ("", "accuracy", "median latency, ms", "tokens read by the target")
        differences = ("", "accuracy, difference", "latency, ratio", "tokens, ratio")
        return [
            table_of(f"{count}; figures with their 95% interval", columns, rows),
            table_of("the same questions, compared in pairs", differences, compared),
        ]

    def notes(self) -> list[str]:
        """Lines below the tables: what bounds the accuracies."""
        retrieved = self._share([example.retrieved for example in self.examples])
        drafted = self._share([example.drafted for example in self.examples])
        return [
            f"an answer stands in the retrieved documents: {retrieved.shown('.3f')} of the questions",
            f"an answer stands in one of the drafts: {drafted.shown('.3f')}",
        ]

    def as_json(self) -> dict[str, Any]:
        """All figures, and every answer."""
        figures = {
            way: {
                "accuracy": asdict(self.accuracy(way)),
                "latency_ms": asdict(self.latency(way)),
                "target_tokens": asdict(self.target_tokens(way)),
                "accuracy_difference": asdict(self.accuracy_difference(way)),
                "latency_ratio": asdict(self.latency_ratio(way)),
                "token_ratio": asdict(self.token_ratio(way)),
            }
            for way in WAYS
        }
        return {**self._setting, "ways": figures, "examples": [asdict(example) for example in self.examples]}

    def _share(self, hits: Sequence[bool]) -> Interval:
        return Interval.of_share(sum(hits), len(hits))

    def _latencies(self, way: str) -> list[float]:
        return [example.outcomes[way].latency for example in self.examples]

    def _tokens(self, way: str) -> list[float]:
        return [float(example.outcomes[way].target_tokens) for example in self.examples]


def _median_of_first(ours: Figures, theirs: Figures) -> Figures:
    return np.asarray(np.median(ours, axis=-1))


def _mean_of_first(ours: Figures, theirs: Figures) -> Figures:
    return np.asarray(ours.mean(axis=-1))


def _mean_difference(ours: Figures, theirs: Figures) -> Figures:
    return np.asarray((ours - theirs).mean(axis=-1))


def _median_ratio(ours: Figures, theirs: Figures) -> Figures:
    return np.asarray(np.median(ours / theirs, axis=-1))


def _ratio_of_means(ours: Figures, theirs: Figures) -> Figures:
    return np.asarray(ours.mean(axis=-1) / theirs.mean(axis=-1))
