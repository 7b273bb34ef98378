"""The plot of `ovspec eval fidelity`: divergence against speed, one point per setting."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ovspec.eval.report import Report
from ovspec_models.folder.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_fidelity(report: Report, path: Path) -> None:
    """Draw KL and the outputs' common prefix against speed, in the order of the settings."""
    from matplotlib.figure import Figure

    found = [
        (result.setting.name, summary)
        for result, summary in zip(report.results, report.summaries(), strict=True)
        if summary.speedup is not None and summary.kl is not None
    ]
    names = [name for name, _ in found]
    speeds = [summary.speedup or 0.0 for _, summary in found]
    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    kls = [summary.kl for _, summary in found if summary.kl is not None]
    _draw(left, speeds, [kl.mean for kl in kls], names, "mean")
    left.plot(speeds, [kl.p99 for kl in kls], marker="^", linestyle="--", alpha=0.6, label="99th percentile")
    smallest = min((kl.mean for kl in kls if kl.mean > 0), default=1e-6)
    # A budget that covers everything has a KL of zero.
    left.set_yscale("symlog", linthresh=smallest)
    left.set_ylim(bottom=0)
    left.set(title="distribution, teacher-forced", ylabel="KL(dense || setting), nats")
    left.legend()
    _draw(right, speeds, [summary.top1_agreement or 0.0 for _, summary in found], names, "top-1 agreement")
    prefixes = [summary.matched_prefix for _, summary in found]
    right.plot(speeds, prefixes, marker="^", linestyle="--", alpha=0.6, label="output before divergence")
    right.set(title="tokens", ylabel="share that is dense decoding's", ylim=(-0.02, 1.05))
    right.legend()
    for panel in (left, right):
        # Names are to the right of their points.
        panel.margins(x=0.15)
        panel.axvline(1.0, color="grey", linewidth=0.8)
        panel.set_xlabel(f"speed, by {report.reference} decoding's")
        panel.grid(True, alpha=0.3)
    prompts = f"{len(report.references)} prompt{'s' if len(report.references) > 1 else ''}"
    title = f"{report.model.folder.name}, {prompts}, inference {report.precisions['inference']}"
    figure.suptitle(title, wrap=True)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file in one step, in the format that its suffix names."""
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:], dpi=150)
    replace_file(path, picture.getvalue())


def _draw(panel: Axes, speeds: list[float], values: list[float], names: list[str], label: str) -> None:
    panel.plot(speeds, values, marker="o", label=label)
    for speed, value, name in zip(speeds, values, names, strict=True):
        panel.annotate(name, (speed, value), xytext=(5, 5), textcoords="offset points", fontsize="small")
