"""Report of `ovspec bench schedule`, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import numpy as np
from rich.table import Table

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.source import ModelSource
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of

_RESAMPLES = 4000
_CONFIDENCE = 95


@dataclass(frozen=True, slots=True)
class Interval:
    """Median of ratios with its 95% confidence interval."""

    median: float
    low: float
    high: float


def bootstrap(ratios: list[float]) -> Interval:
    """Median of paired ratios and its bootstrap interval over the rounds, with a fixed seed."""
    rng, values = np.random.default_rng(0), np.array(ratios)
    medians = np.median(rng.choice(values, (_RESAMPLES, len(values))), axis=1)
    margin = (100 - _CONFIDENCE) / 2
    low, high = np.percentile(medians, [margin, 100 - margin])
    return Interval(float(np.median(values)), float(low), float(high))


@dataclass(slots=True)
class WorkloadRecord:
    """The rounds of a workload.

    Attributes:
        tokens_per_second: by setting, "auto" or a fixed number of draft tokens, round by round.
        auto_lengths: mean number of draft tokens that `auto` asked for, round by round.
        collapses: number of times that `auto` saw acceptance collapse.
    """

    tokens_per_second: dict[str, list[float]]
    auto_lengths: list[float]
    collapses: int

    @property
    def best(self) -> str:
        """The fixed setting with the highest median."""
        fixed = [setting for setting in self.tokens_per_second if setting != "auto"]
        return max(fixed, key=lambda setting: median(self.tokens_per_second[setting]))

    def ratio(self, setting: str, baseline: str) -> Interval:
        """Tokens per second over those of another setting in the same round."""
        pairs = zip(self.tokens_per_second[setting], self.tokens_per_second[baseline], strict=True)
        return bootstrap([ours / theirs for ours, theirs in pairs])


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Results of one run of `ovspec bench schedule`."""

    model: str
    source: ModelSource
    context: int
    trace: AcceptanceTrace
    max_new_tokens: int
    skip_tokens: int
    cold: bool
    records: dict[str, WorkloadRecord]

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, settings, and per workload its rounds and ratios."""
        return {
            "machine": machine(native=True),
            "versions": versions(),
            "model": self.model,
            "max_new_tokens": self.max_new_tokens,
            "skip_tokens": self.skip_tokens,
            "cold": self.cold,
            "long": {
                "model": self.source.name,
                "synthetic": self.source.synthetic,
                "context": self.context,
                "acceptance": self.trace.source,
            },
            "workloads": {
                name: {
                    "tokens_per_second": record.tokens_per_second,
                    "best_fixed": int(record.best),
                    "auto_over_best_fixed": asdict(record.ratio("auto", record.best)),
                    "auto_over_plain": asdict(record.ratio("auto", "0")),
                    "auto_num_assistant_tokens": mean(record.auto_lengths),
                    "acceptance_collapses": record.collapses,
                }
                for name, record in self.records.items()
            },
        }

    def lines(self) -> list[str]:
        """What was measured and how, one sentence per line."""
        lines = [
            f"tokens per second after the first {self.skip_tokens} of {self.max_new_tokens} tokens; settings "
            "take turns, ratios are of the same round",
            "auto begins every generation anew"
            if self.cold
            else "auto keeps what it learned in the rounds before, the first of which is not timed",
        ]
        if self.records.keys() - {"long"}:
            lines.append(f"repetitive (greedy) and creative (temperature 0.8): {self.model}")
        if "long" in self.records:
            kind = "random weights" if self.source.synthetic else "its own weights"
            lines.append(
                f"long: {self.source.name} ({kind}) behind {self.context:,} random tokens; a trace decides "
                f"what is accepted, and drafts at the cost of a lookup: {self.trace.source}"
            )
        return lines

    def notes(self) -> list[str]:
        """Lines below the table: none."""
        return []

    def table(self) -> Table:
        """Tokens per second by workload and setting, and the ratios to plain and to the best fixed number."""
        settings = list(next(iter(self.records.values())).tokens_per_second)
        rounds = len(next(iter(self.records.values())).tokens_per_second["auto"])
        names, rows = ["workload", *settings, "auto /\nbest fixed", "auto /\nplain", "auto\nlength"], []
        for workload, record in self.records.items():
            cells = [
                f"{median(rates):.1f}" + ("*" if setting == record.best else "")
                for setting, rates in record.tokens_per_second.items()
            ]
            for baseline in (record.best, "0"):
                ratio = record.ratio("auto", baseline)
                cells.append(f"{ratio.median:.3f}\n({ratio.low:.3f}-{ratio.high:.3f})")
            rows.append([workload, *cells, f"{mean(record.auto_lengths):.1f}"])
        title = f"tokens per second, median of {rounds} rounds; ratios with their 95% interval"
        return table_of(title, names, rows)
