"""Report of `ovspec bench decode`, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from rich.table import Table

from ovspec.bench.decode import DecodeBench, DecodeRecord
from ovspec.bench.rounds import Spread
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of

BASELINES = ("stock_plain", "stock_speculative")
LOSSY = ("sparse",)


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """Results of one run of `ovspec bench decode`; `records` has the rounds of each mode."""

    bench: DecodeBench
    records: dict[str, list[DecodeRecord]]

    def ratio(self, mode: str, baseline: str) -> Spread:
        """Tokens per second of a mode over those of a baseline in the same round."""
        pairs = zip(self.records[mode], self.records[baseline], strict=True)
        return Spread.of([ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs])

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, settings, and per mode its rounds and ratios."""
        bench = self.bench
        return {
            "machine": machine(native=any(mode not in BASELINES for mode in self.records)),
            "versions": versions(),
            "model": {"name": bench.source.name, "synthetic": bench.source.synthetic},
            "context": bench.context,
            "max_new_tokens": bench.max_new_tokens,
            "acceptance": {
                "source": bench.trace.source,
                "tokens_per_pass": bench.trace.tokens_per_pass(),
                "decides": "which drafts are accepted, in every mode alike",
            },
            "budget": bench.sparse.budget_tokens(bench.context),
            "expert_budget": bench.sparse.expert_budget,
            "ffn_density": bench.sparse.ffn_density,
            "commit_interval": bench.interval,
            "draft_budget": bench.draft_budget,
            "modes": {
                mode: {
                    "lossy": mode in LOSSY,
                    "rounds": [asdict(record) for record in records],
                    **{f"over_{base}": asdict(self.ratio(mode, base)) for base in self._baselines()},
                }
                for mode, records in self.records.items()
            },
        }

    def _baselines(self) -> list[str]:
        return [mode for mode in BASELINES if mode in self.records]

    def lines(self) -> list[str]:
        """What was measured and how, one sentence per line."""
        bench = self.bench
        kind = "random weights of this shape" if bench.source.synthetic else "its own weights"
        return [
            f"{bench.source.name} ({kind}), context of {bench.context:,} random tokens, "
            f"{bench.max_new_tokens} new tokens a generation",
            f"a trace decides which drafts are accepted, in every mode alike: {bench.trace.source}, "
            f"{bench.trace.tokens_per_pass():.2f} tokens a verification",
            "drafts come from the trace at the cost of a lookup, but for sparse_self and layer_skip, which "
            "draft by themselves",
        ]

    def notes(self) -> list[str]:
        """Lines below the table: none."""
        return []

    def table(self) -> Table:
        """Tokens per second by mode, and the ratios to stock."""
        rounds, rows = len(next(iter(self.records.values()))), []
        names = ["mode", "tokens/s", *["x " + base.replace("_", "\n") for base in self._baselines()]]
        names += ["tokens\na pass", "verify\nms", "draft\nms", "commit\nms", "density"]
        counted = any(record.experts_read for records in self.records.values() for record in records)
        names += ["experts\nread"] * counted
        for mode, records in self.records.items():
            cells = [f"{median(record.tokens_per_second for record in records):.1f}"]
            for base in self._baselines():
                ratio = self.ratio(mode, base)
                cells.append(f"{ratio.median:.2f} ({ratio.min:.2f}-{ratio.max:.2f})")
            cells.append(f"{mean(record.tokens_per_pass for record in records):.2f}")
            for name in ("verify_ms", "draft_ms", "commit_ms"):
                values = [value for record in records if (value := getattr(record, name)) is not None]
                cells.append(f"{mean(values):.1f}" if values else "-")
            cells.append(f"{mean(record.density for record in records):.2f}")
            if counted:
                read = mean(record.experts_read for record in records)
                cells.append(f"{read:.1f}" if read else "-")
            rows.append([f"{mode} (LOSSY)" if mode in LOSSY else mode, *cells])
        title = f"median of {rounds} generations; ratios round by round, lowest to highest"
        return table_of(title, names, rows)
