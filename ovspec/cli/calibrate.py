"""`ovspec calibrate`: settings of sparse verification, measured on a user's texts."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ovspec.calibration import ROWS, LayerOverlap, OverlapMeter
from ovspec.cli.options import properties_from, selection_options, sparse_from
from ovspec.cli.output import output_console
from ovspec.inputs import encode, read_tokenizer
from ovspec.pipeline import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.verify_config import SparseVerify, calibrated
from ovspec_models import ModelInfo, OvspecConfig, VerifySection
from ovspec_models.jsonl import read_texts


@click.command()
@click.option(
    "-m", "--model", type=click.Path(path_type=Path), required=True, help="Folder with the model's IR."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help='Texts, one JSON value per line: a string, or an object such as {"text": "..."}.',
)
@click.option(
    "--anchors", type=int, help="Number of anchor layers.  [default: as many as the default rule has]"
)
@click.option(
    "--overlap",
    type=float,
    help="Instead: as few anchors as let every layer's list overlap its anchor's this much, 0 to 1.",
)
@click.option(
    "--max-texts", type=click.IntRange(1), default=16, show_default=True, help="Texts to read at most."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=4096, show_default=True, help="Tokens to read of a text."
)
@click.option(
    "--stride",
    type=click.IntRange(ROWS),
    default=128,
    show_default=True,
    help="Tokens between two selections that are compared.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="OpenVINO property, e.g. KV_CACHE_PRECISION=f16; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@selection_options
def calibrate(
    model: Path,
    data: Path,
    anchors: int | None,
    overlap: float | None,
    max_texts: int,
    max_tokens: int,
    stride: int,
    properties: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the layers that select blocks by how alike the layers' lists are, and write them to the folder.

    The model reads the texts densely while every layer selects. The chosen layers, and the options of sparse
    verification that were given, become the folder's settings in ovspec_config.json, from where sparse
    verification takes what a user leaves open.
    """
    if anchors is not None and overlap is not None:
        raise ValueError(f"--anchors {anchors} and --overlap {overlap} exclude each other: give one")
    if overlap is not None and not 0.0 <= overlap <= 1.0:
        raise ValueError(f"--overlap {overlap}: expected a share between 0 and 1")
    given = sparse_from(options)
    config = folder_config(model)
    sparse = calibrated(given, config)
    assert isinstance(sparse, SparseVerify)
    texts = tokenized(model, read_texts(data)[:max_texts], min(max_tokens, position_limit(config)))
    meter = OverlapMeter(model, sparse, dict(properties_from(properties)))
    check_anchors(anchors, meter.layers)
    measured = measure(meter, texts, stride)
    if anchors is None and overlap is None:
        anchors = len(measured.default_anchors())
    chosen = measured.choose(anchors, overlap)
    config.verify = with_settings(config.verify, given, chosen)
    path = config.save(model)
    if as_json:
        click.echo(json.dumps(report(measured, chosen, config.verify, path), indent=2))
    else:
        show(measured, chosen, path)


def folder_config(folder: Path) -> OvspecConfig:
    """The folder's configuration, or a new one for a folder that optimum-cli wrote.

    Raises:
        ValueError: no model, or a folder that can't be written.
    """
    info = ModelInfo.read(folder)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--model {folder}: the folder can't be written; copy it to where you may write")
    return OvspecConfig.load(folder) or OvspecConfig(model=info.section(folder.resolve().name))


def check_anchors(anchors: int | None, layers: tuple[int, ...]) -> None:
    """Refuse a number of anchors that the model has no layers for, before the long work."""
    if anchors is not None and not 1 <= anchors <= len(layers):
        raise ValueError(
            f"--anchors {anchors}: expected 1 to {len(layers)}, the layers of this model that can select"
        )


def position_limit(config: OvspecConfig) -> int:
    """Tokens that the model can read."""
    return config.model.max_position_embeddings or sys.maxsize


def tokenized(folder: Path, texts: list[str], limit: int) -> list[NDArray[np.int64]]:
    """Token ids of the texts, of each at most so many."""
    tokenizer = read_tokenizer(folder)
    return [np.array(encode(tokenizer, text, False)[:limit], np.int64) for text in texts]


def measure(meter: OverlapMeter, texts: list[NDArray[np.int64]], stride: int) -> LayerOverlap:
    """Run the model, with a progress bar where someone watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading texts", total=sum(map(len, texts)))
        return meter.measure(
            texts, stride, DEFAULT_MAX_NUM_BATCHED_TOKENS, lambda tokens: progress.advance(task, tokens)
        )


def with_settings(
    section: VerifySection | None, given: SparseVerify, anchors: tuple[int, ...]
) -> VerifySection:
    """The settings with new anchors and what was given beside them; another budget replaces the old one."""
    names = [entry.name for entry in fields(SparseVerify) if entry.name != "anchor_layers"]
    settings = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    old = section or VerifySection()
    replaced = {"L0", "rho", "budget", "coverage"}
    if settings.keys() & replaced:
        if "L0" in settings or "rho" in settings:
            replaced -= {"L0", "rho"}
        old = replace(old, **dict.fromkeys(replaced))
    return replace(old, anchor_layers=list(anchors), **settings)


def report(
    measured: LayerOverlap, chosen: tuple[int, ...], section: VerifySection, path: Path
) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "config": str(path),
        "verify": {entry.name: getattr(section, entry.name) for entry in fields(section)},
        "passes": measured.passes,
        "tokens": measured.tokens,
        "layers": list(measured.layers),
        "overlap": [[round(float(value), 4) for value in row] for row in measured.overlap],
        "overlap_with_anchor": [round(value, 4) for value in measured.with_anchor(chosen)],
        "default_anchor_layers": list(measured.default_anchors()),
        "overlap_with_default_anchor": [
            round(value, 4) for value in measured.with_anchor(measured.default_anchors())
        ],
    }


def show(measured: LayerOverlap, chosen: tuple[int, ...], path: Path) -> None:
    """Print the table."""
    default = measured.default_anchors()
    table = Table("layer", "anchor", "overlap with it", "overlap with the default rule's")
    for layer, mine, rule in zip(
        measured.layers, measured.with_anchor(chosen), measured.with_anchor(default), strict=True
    ):
        anchor = max(anchor for anchor in chosen if anchor <= layer)
        name = "itself" if anchor == layer else str(anchor)
        table.add_row(str(layer), name, f"{mine:.2f}", f"{rule:.2f}")
    output_console().print(table)
    means = [sum(values) / len(values) for values in map(measured.with_anchor, (chosen, default))]
    click.echo(
        f"{measured.passes} selections in {measured.tokens} tokens; mean overlap {means[0]:.2f} with "
        f"{len(chosen)} anchors, {means[1]:.2f} with the default rule's {len(default)}"
    )
    click.echo(f"anchor_layers {','.join(map(str, chosen))} written to {path}")
