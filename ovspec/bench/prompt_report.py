"""Report of `ovspec bench prompt`, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from rich.table import Table

from ovspec.bench.prompt import OURS, PromptBench, PromptRecord
from ovspec.bench.rounds import Spread, name_of
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of

LOSSY = ("sparse",)
_TIMES = {"seconds": "s", "cpu_seconds": "cpu s", "token_ms": "ms/token"}


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Results of one run of `ovspec bench prompt`; `records` has the rounds by context and mode."""

    bench: PromptBench
    records: dict[tuple[int, str], list[PromptRecord]]

    @property
    def times(self) -> list[str]:
        """What was timed: attributes of `PromptRecord`."""
        return [name for name in _TIMES if name != "token_ms" or self.bench.max_new_tokens > 1]

    def ratio(self, context: int, mode: str, time: str) -> Spread:
        """A time of a mode over that of the first mode in the same round."""
        pairs = zip(self.records[context, mode], self.records[context, self.bench.modes[0]], strict=True)
        return Spread.of([getattr(ours, time) / getattr(first, time) for ours, first in pairs])

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, model, properties, and records with rounds and ratios."""
        bench = self.bench
        return {
            "machine": machine(native=any(name_of(mode) in OURS for mode in bench.modes)),
            "versions": versions(),
            "model": {"name": bench.source.name, "synthetic": bench.source.synthetic},
            "max_new_tokens": bench.max_new_tokens,
            "properties": {name: str(value) for name, value in bench.properties.items()},
            "records": [
                {
                    "context": context,
                    "mode": mode,
                    "lossy": name_of(mode) in LOSSY,
                    "rounds": [asdict(record) for record in rounds],
                    **{f"{time}_ratio": asdict(self.ratio(context, mode, time)) for time in self.times},
                }
                for (context, mode), rounds in self.records.items()
            ],
        }

    def lines(self) -> list[str]:
        """What was measured and how, one sentence per line."""
        source = self.bench.source
        kind = "random weights of this shape" if source.synthetic else "its own weights"
        given = " ".join(f"{name}={value}" for name, value in self.bench.properties.items())
        return [
            f"{source.name} ({kind}), layers: {source.num_hidden_layers}, weights: {source.weight_format}; "
            f"random prompts, the same for every mode of a round; properties: {given or 'the defaults'}"
        ]

    def notes(self) -> list[str]:
        """Lines below the table: none."""
        return []

    def table(self) -> Table:
        """Times of calls, and their ratios to the first mode."""
        over, rows = f"/ {self.bench.modes[0]}", []
        for (context, mode), rounds in self.records.items():
            cells = [f"{context:,}", f"{mode} (LOSSY)" if name_of(mode) in LOSSY else mode]
            for time in self.times:
                ratio = self.ratio(context, mode, time)
                cells.append(f"{median(getattr(record, time) for record in rounds):.3f}")
                cells.append(f"{ratio.median:.2f} ({ratio.min:.2f}-{ratio.max:.2f})")
            rows.append([*cells, f"{mean(record.density for record in rounds):.2f}"])
        title = (
            f"first token, median of {self.bench.repeat} prompts; ratios round by round, lowest to highest"
        )
        columns = [column for time in self.times for column in (_TIMES[time], over)]
        return table_of(title, ["tokens", "mode", *columns, "share\nread"], rows, names=2)
