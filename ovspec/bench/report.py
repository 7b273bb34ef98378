"""What a bench found, as JSON and as a table."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from rich.table import Table

import ovspec
import ovspec_ops
from ovspec.bench.memory import total_bytes
from ovspec.bench.source import ModelSource


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of the timed passes."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Record:
    """One backend at one context and number of tokens.

    Attributes:
        density: share of the context's cache bytes that attention read, over layers without a sliding
            window.
        budget: of sparse attention, in tokens; `None` for the dense backends.
    """

    backend: str
    context: int
    tokens: int
    density: float
    budget: int | None
    ms: Spread


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of `ovspec bench verify` found.

    Attributes:
        interleaved: whether the backends took turns pass by pass; if not, each compiled model had the
            machine to itself in turn, and drift of the machine is in the ratios.
        settings: precisions in force by backend.
    """

    source: ModelSource
    interleaved: bool
    repeat: int
    num_threads: int
    bandwidth_gb_s: float
    bandwidth_method: str
    settings: dict[str, dict[str, str]]
    records: list[Record]

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, model, bandwidth_gb_s, records."""
        source = self.source
        return {
            "machine": self._machine(),
            "versions": {
                "ovspec": ovspec.__version__,
                "openvino": ov.get_version(),
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
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
            "records": [asdict(record) for record in self.records],
        }

    def _machine(self) -> dict[str, object]:
        core = ov.Core()
        native = any(record.backend != "stock" for record in self.records)
        return {
            "processor": str(core.get_property("CPU", "FULL_DEVICE_NAME")),
            "num_threads": self.num_threads,
            "openvino_capabilities": list(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
            "instruction_set": ovspec_ops.active_isa() if native else None,
            "memory_bytes": total_bytes(),
        }

    def save(self, path: Path) -> None:
        """Write the JSON to `path`, which is never left half written."""
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(self.as_json(), indent=2) + "\n")
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def lines(self) -> list[str]:
        """What was measured and how, a sentence a line."""
        source, machine = self.source, self._machine()
        kind = "synthetic: random weights of this shape" if source.synthetic else "not synthetic"
        lines = [
            f"{source.name} ({kind}), layers: {source.num_hidden_layers}, weights: {source.weight_format} "
            f"({source.weight_bytes / 1e9:.2f} GB), vocabulary: {source.vocab_size:,}; the context is random",
            f"{machine['processor']}, {self.num_threads} threads, "
            f"{self.bandwidth_gb_s:.1f} GB/s ({self.bandwidth_method})",
        ]
        lines += [
            f"{backend}: inference {found['inference']}, keys {found['key_cache']}, "
            f"values {found['value_cache']}"
            for backend, found in self.settings.items()
        ]
        if not self.interleaved:
            lines.append("NOT interleaved: memory holds one compiled model at a time; distrust small ratios")
        return lines

    def table(self) -> Table:
        """Median milliseconds by context and tokens, and each backend's ratio to the first."""
        backends = list(self.settings)
        found = {(record.context, record.tokens, record.backend): record for record in self.records}
        table = Table(title=f"one pass, median of {self.repeat}", title_justify="left")
        ratios = backends[1:]
        names = ["context", "tokens", *[f"{backend}\nms" for backend in backends]]
        names += [f"{backend}/\n{backends[0]}" for backend in ratios]
        names += ["sparse\ndensity"] if "sparse" in backends else []
        for name in names:
            table.add_column(name, justify="right")
        for context, tokens in dict.fromkeys((record.context, record.tokens) for record in self.records):
            row = {backend: found[context, tokens, backend] for backend in backends}
            base = row[backends[0]].ms.median
            cells = [f"{context:,}", str(tokens)]
            cells += [f"{row[backend].ms.median:.1f}" for backend in backends]
            cells += [f"{row[backend].ms.median / base:.2f}" for backend in ratios]
            cells += [f"{row['sparse'].density:.2f}"] if "sparse" in backends else []
            table.add_row(*cells)
        return table
