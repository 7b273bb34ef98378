"""The plot of `ovspec bench verify`: time by context, one line per backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ovspec.bench.report import Report
from ovspec.eval.plot import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn before the measurement starts."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--plot {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "--plot needs matplotlib: install it with `pip install 'ovspec[plot]'`, or use --json"
        ) from error


def plot_report(report: Report, path: Path) -> None:
    """Draw one panel per number of tokens; error bars span the fastest to the slowest pass."""
    from matplotlib.figure import Figure

    counts = list(dict.fromkeys(record.tokens for record in report.records))
    figure = Figure(figsize=(1.2 + 3.6 * len(counts), 3.8), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for panel, tokens in zip(panels, counts, strict=True):
        _draw(panel, report, tokens)
    panels[0].set_ylabel("milliseconds per pass")
    panels[0].legend()
    processor = report.as_json()["machine"]["processor"]
    source = report.source
    title = f"{source.name}, {source.weight_format}, {report.num_threads} threads of {processor}"
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)


def _draw(panel: Axes, report: Report, tokens: int) -> None:
    for backend in report.settings:
        records = [r for r in report.records if r.backend == backend and r.tokens == tokens]
        medians = [record.ms.median for record in records]
        below = [record.ms.median - record.ms.min for record in records]
        above = [record.ms.max - record.ms.median for record in records]
        contexts = [record.context for record in records]
        panel.errorbar(contexts, medians, (below, above), label=backend, marker="o", capsize=3)
    contexts = sorted({record.context for record in report.records})
    panel.set(title=f"{tokens} tokens" if tokens > 1 else "1 token", xlabel="tokens of context")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(contexts, [f"{context:,}" for context in contexts], minor=False)
    panel.grid(True, which="both", alpha=0.3)
