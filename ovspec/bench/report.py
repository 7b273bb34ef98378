"""Report of `ovspec bench verify`, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from ovspec.bench.backends import SPARSE
from ovspec.bench.rounds import Spread
from ovspec.bench.source import ModelSource
from ovspec.devices.devices import is_cpu
from ovspec.eval.in_force import SelectionInForce, verify_in_force
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of
from ovspec_models.folder.sparse_verify import SparseVerify

# A step that takes a smaller share of a pass is one of the "other steps".
_NAMED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Record:
    """One backend at one context and number of tokens.

    Attributes:
        density: share of the context's cache bytes that attention read, over layers without a sliding
            window.
        budget: budget of sparse attention in tokens; `None` for the dense backends.
        selection_ms: part of `ms` spent on block selection by our operations, median; `None` for the others.
        steps_ms: part of `ms` by kind of step ("linear", "attention", ...), summed over layers, median;
            empty where no operation is ours.
        experts_read: mean number of experts of a layer that a pass read; `None` if it is not counted.
        ffn_density: share of the feed-forward channels whose up and down weights it read; `None` if not
            limited.
        gb_s: gigabytes (1e9 bytes) of weights and cache that the pass needs, divided by its median time;
            `None` if the bytes depend on the tokens (experts). Layers with a sliding window count like the
            others.
    """

    backend: str
    context: int
    tokens: int
    density: float
    budget: int | None
    experts_read: float | None
    ffn_density: float | None
    ms: Spread
    selection_ms: float | None
    steps_ms: dict[str, float]
    gb_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one run of `ovspec bench verify`.

    Attributes:
        interleaved: whether the backends took turns pass by pass. If not, the compiled models were timed one
            after the other, and a change of the machine's speed affects the ratios.
        settings: settings in force by backend, from `Subject.settings`.
        sparse: what the sparse backends may read.
        selection: how they select, if they do.
    """

    source: ModelSource
    interleaved: bool
    repeat: int
    num_threads: int
    bandwidth_gb_s: float
    bandwidth_method: str
    settings: dict[str, dict[str, str | int | None]]
    records: list[Record]
    sparse: SparseVerify
    device: str = "CPU"
    selection: SelectionInForce | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, model, bandwidth_gb_s, records."""
        source = self.source
        return {
            "machine": self._machine(),
            "versions": versions(),
            "model": {
                "name": source.name,
                "synthetic": source.synthetic,
                "weight_format": source.weight_format,
                "weight_bytes": source.weight_bytes,
                "num_hidden_layers": source.num_hidden_layers,
                "vocab_size": source.vocab_size,
            },
            "bandwidth_gb_s": self.bandwidth_gb_s,
            "bandwidth_method": self.bandwidth_method,
            "interleaved": self.interleaved,
            "repeat": self.repeat,
            "precisions": self.settings,
            "sparse": verify_in_force(self.sparse, self.selection),
            "expert_budget": self.sparse.expert_budget,
            "ffn_density": self.sparse.ffn_density,
            "records": [asdict(record) for record in self.records],
        }

    def _machine(self) -> dict[str, object]:
        native = any(record.backend != "stock" for record in self.records)
        return {**machine(native, self.device), "num_threads": self.num_threads}

    def lines(self) -> list[str]:
        """What was measured and how, one sentence per line."""
        source = self.source
        kind = "synthetic: random weights of this shape" if source.synthetic else "not synthetic"
        found = self._machine()
        where = f"{found['processor']}, {self.num_threads} threads, {self.bandwidth_gb_s:.1f} GB/s "
        where += f"({self.bandwidth_method})"
        lines = [
            f"{source.name} ({kind}), layers: {source.num_hidden_layers}, weights: {source.weight_format} "
            f"({source.weight_bytes / 1e9:.2f} GB), vocabulary: {source.vocab_size:,}; the context is random",
            where if is_cpu(self.device) else f"{self.device}: {found['device']}",
        ]
        lines += [
            f"{backend}: inference {found['inference']}, keys {found['key_cache']}, "
            f"values {found['value_cache']}, linear layers {found['linear']}"
            + ("" if (bits := found["row_bits"]) is None else f", rows of {bits} bits")
            for backend, found in self.settings.items()
        ]
        if not self.interleaved:
            lines.append("NOT interleaved: memory holds one compiled model at a time; distrust small ratios")
        return lines

    def notes(self) -> list[str]:
        """Lines below the table: times by kind of step, and what the sparse backends leave out."""
        selection = [
            f"selection at context {record.context:,}, {record.tokens} tokens: {record.selection_ms:.2f} of "
            f"{record.ms.median:.1f} ms ({record.selection_ms / record.ms.median:.1%})"
            for record in self.records
            if record.selection_ms is not None
        ]
        steps = [_steps_line(record) for record in self.records if record.steps_ms]
        return [*steps, *selection, *self._lossy_lines()]

    def _lossy_lines(self) -> list[str]:
        lines = []
        for backend in (backend for backend in self.settings if backend in SPARSE):
            budgets = [r.budget for r in self.records if r.backend == backend and r.budget is not None]
            parts = []
            if self.sparse.limits_attention:
                parts.append(f"{max(budgets)} tokens of the context, the blocks that score highest")
            if self.sparse.limits_experts:
                parts.append(f"{self.sparse.expert_budget} experts of a layer")
            if self.sparse.limits_channels:
                parts.append(f"feed-forward channels of density {self.sparse.ffn_density}")
            lines.append(f"{backend} is LOSSY: it reads {', and '.join(parts)}")
        return lines

    def table(self) -> Table:
        """Median milliseconds by context and tokens, and each backend's ratio to the first."""
        backends = list(self.settings)
        found = {(record.context, record.tokens, record.backend): record for record in self.records}
        rows = []
        ratios = backends[1:]
        names = ["context", "tokens", *[f"{backend}\nms" for backend in backends]]
        names += [f"{backend}/\n{backends[0]}" for backend in ratios]
        names += [f"{backend}\nGB/s" for backend in backends]
        sparse = [backend for backend in backends if backend in SPARSE]
        names += [f"{backend}\ndensity" for backend in sparse]
        counted = [b for b in backends if any(r.backend == b and r.experts_read for r in self.records)]
        names += [f"{backend}\nexperts" for backend in counted]
        limited = [b for b in sparse if any(r.backend == b and r.ffn_density for r in self.records)]
        names += [f"{backend}\nffn" for backend in limited]
        for context, tokens in dict.fromkeys((record.context, record.tokens) for record in self.records):
            row = {backend: found[context, tokens, backend] for backend in backends}
            base = row[backends[0]].ms.median
            cells = [f"{context:,}", str(tokens)]
            cells += [f"{row[backend].ms.median:.1f}" for backend in backends]
            cells += [f"{row[backend].ms.median / base:.2f}" for backend in ratios]
            speeds = [row[backend].gb_s for backend in backends]
            cells += ["-" if speed is None else f"{speed:.1f}" for speed in speeds]
            cells += [f"{row[backend].density:.2f}" for backend in sparse]
            cells += [f"{row[backend].experts_read:.1f}" for backend in counted]
            cells += [f"{row[backend].ffn_density:.2f}" for backend in limited]
            rows.append(cells)
        return table_of(f"one pass, median of {self.repeat}", names, rows, names=0)


def _steps_line(record: Record) -> str:
    """A pass by kind of step, the longest first; what is short, or beside the steps, together."""
    whole = record.ms.median
    named = {kind: ms for kind, ms in record.steps_ms.items() if ms >= _NAMED_SHARE * whole}
    parts = [f"{kind} {ms:.2f}" for kind, ms in sorted(named.items(), key=lambda item: -item[1])]
    steps = sum(record.steps_ms.values())
    parts += [f"other steps {steps - sum(named.values()):.2f}", f"outside of them {whole - steps:.2f}"]
    return (
        f"{record.backend} at context {record.context:,}, {record.tokens} tokens, ms by step: "
        + ", ".join(parts)
    )
