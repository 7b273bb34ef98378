"""Report of `ovspec bench schedule`, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from rich.table import Table

from ovspec.bench.schedule import ScheduleBench, WorkloadRecord
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Results of one run of `ovspec bench schedule`."""

    bench: ScheduleBench
    records: dict[str, WorkloadRecord]

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, settings, and per workload its rounds and ratios."""
        bench = self.bench
        return {
            "machine": machine(native=True),
            "versions": versions(),
            "model": str(bench.model),
            "max_new_tokens": bench.max_new_tokens,
            "skip_tokens": bench.skip_tokens,
            "cold": bench.cold,
            "long": {
                "model": bench.source.name,
                "synthetic": bench.source.synthetic,
                "context": bench.context,
                "acceptance": bench.trace.source,
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
        bench = self.bench
        lines = [
            f"tokens per second after the first {bench.skip_tokens} of {bench.max_new_tokens} tokens; "
            "settings take turns, ratios are of the same round",
            "auto begins every generation anew"
            if bench.cold
            else "auto keeps what it learned in the rounds before, the first of which is not timed",
        ]
        if self.records.keys() - {"long"}:
            lines.append(f"repetitive (greedy) and creative (temperature 0.8): {bench.model}")
        if "long" in self.records:
            kind = "random weights" if bench.source.synthetic else "its own weights"
            lines.append(
                f"long: {bench.source.name} ({kind}) behind {bench.context:,} random tokens; a trace decides "
                f"what is accepted, and drafts at the cost of a lookup: {bench.trace.source}"
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
                cells.append(f"{ratio.value:.3f}\n({ratio.low:.3f}-{ratio.high:.3f})")
            rows.append([workload, *cells, f"{mean(record.auto_lengths):.1f}"])
        title = f"tokens per second, median of {rounds} rounds; ratios with their 95% interval"
        return table_of(title, names, rows)
