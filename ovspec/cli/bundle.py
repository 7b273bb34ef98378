"""`ovspec bundle`: pack a model for a machine without network or compiler."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ovspec.bundle import BundleReport, write_bundle
from ovspec.bundle.bundle import Wheels
from ovspec.cli.export import step_display
from ovspec.cli.options.common import draft_folder
from ovspec.cli.options.forms import MODEL, PATH, default_option, json_flag
from ovspec.cli.options.output import print_json


@click.command()
@click.argument("folder", metavar="DIR", type=MODEL)
@click.argument("out", type=PATH)
@default_option(
    "--draft-model",
    "auto",
    "Folder of the draft model; auto: the one that was exported with the model, none: no draft.",
)
@default_option(
    "--wheels",
    "installed",
    "Pack the wheels of what ovspec needs from this installation, or have pip download them.",
    type=click.Choice(["installed", "index"]),
)
@json_flag
def bundle(folder: Path, out: Path, draft_model: str, wheels: Wheels, as_json: bool) -> None:
    """Write the model in DIR to OUT with all it needs to run on a machine like this one.

    OUT holds the model, wheels of this ovspec and its base install, install.sh, run.py, a smoke test, and
    checksums. The first start verifies all of them, later ones those of files that were written since. It
    needs Linux and the same release of Python, nothing else.
    """
    draft = draft_folder(folder, draft_model)
    with step_display() as progress:
        report = write_bundle(folder, out, draft, wheels, progress)
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(summary(report))


def summary(report: BundleReport) -> str:
    """Print sizes and the next command."""
    megabytes = {
        "model": report.model_bytes,
        "draft": report.draft_bytes,
        f"{len(report.wheels)} wheels": report.wheel_bytes,
    }
    parts = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in megabytes.items() if size)
    return (
        f"bundled to {report.out}: {report.total_bytes / 1e6:.1f} MB ({parts}) for Python {report.python} on "
        f"{report.machine}; there: ./install.sh, then ./run.py -p 'Once upon a time'"
    )
