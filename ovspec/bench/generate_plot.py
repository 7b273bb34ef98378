"""The plot of `ovspec bench generate`: speed by category, one bar per mode."""

from __future__ import annotations

from pathlib import Path

from ovspec.bench.generate_report import GenerateReport
from ovspec.eval.interval import Interval
from ovspec.eval.plot import save_figure


def plot_generate(report: GenerateReport, path: Path) -> None:
    """Draw the speed of every mode by that of the first base, or tokens per second where there is none."""
    from matplotlib.figure import Figure

    categories, modes = report.categories, report.modes
    base = next(iter(report.bases().items()), None)
    figure = Figure(figsize=(max(6.4, 2.4 + 1.6 * len(categories)), 4.2), layout="constrained")
    panel, width = figure.subplots(), 0.8 / len(modes)
    for place, mode in enumerate(modes):
        left = [number + (place - (len(modes) - 1) / 2) * width for number in range(len(categories))]
        if base is None:
            speeds = [report.speed(mode, category) or 0.0 for category in categories]
            panel.bar(left, speeds, width, label=mode)
            continue
        found = [report.ratio(mode, base[1], category) for category in categories]
        ratios = [Interval(0.0, 0.0, 0.0) if ratio is None else ratio for ratio in found]
        below = [max(0.0, ratio.value - ratio.low) for ratio in ratios]
        above = [max(0.0, ratio.high - ratio.value) for ratio in ratios]
        heights = [ratio.value for ratio in ratios]
        panel.bar(left, heights, width, yerr=(below, above), label=mode, error_kw={"elinewidth": 0.8})
    panel.set_xticks(range(len(categories)), categories)
    panel.set_ylabel("tokens/s behind the first token" if base is None else f"speed by that of {base[0]}")
    if base is not None:
        panel.axhline(1.0, color="grey", linewidth=0.8)
    panel.grid(True, axis="y", alpha=0.3)
    panel.legend(fontsize="small", ncols=2)
    figure.suptitle(report.lines()[0], fontsize="medium", wrap=True)
    save_figure(figure, path)
