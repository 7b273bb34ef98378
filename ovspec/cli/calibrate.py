"""`ovspec calibrate`: settings of sparse verification, measured on a user's texts."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from ovspec.calibrate.calibration import ROWS, LayerOverlap, Observer, OverlapMeter
from ovspec.calibrate.target_calibration import TargetCalibration
from ovspec.cli.calibrate_target import show_target, target_report
from ovspec.cli.help import ShortHelpCommand
from ovspec.cli.option_forms import COUNT, default_option, json_flag, typed_option
from ovspec.cli.options import (
    data_option,
    model_option,
    properties_from,
    property_option,
    selection_options,
    sparse_from,
    weight_options,
)
from ovspec.cli.output import print_json, print_rows
from ovspec.generation.inputs import encode, read_tokenizer
from ovspec.runtime.compile import read_model
from ovspec.runtime.devices import openvino_core
from ovspec.runtime.expert_budgets import expert_config
from ovspec.verify.verify_mode import calibrated
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.jsonl import read_texts
from ovspec_models.sources import model_name
from ovspec_models.sparse_verify import AMOUNT_FIELDS, CHANNEL_FIELDS, EXPERT_FIELDS, SparseVerify
from ovspec_transforms import moe_layers

COMMON = (
    *("model", "data", "anchors", "overlap", "target_kl", "max_texts", "max_tokens", "budget"),
    *("properties", "as_json"),
)


@click.command(cls=ShortHelpCommand, common=COMMON)
@model_option
@data_option('Texts, one JSON value per line: a string, or an object such as {"text": "..."}.')
@typed_option("--anchors", int, "Number of anchor layers.  [default: as many as the default rule has]")
@typed_option(
    "--overlap",
    float,
    "Instead: as few anchors as let every layer's list overlap its anchor's this much, 0 to 1.",
)
@typed_option(
    "--target-kl",
    float,
    "Set attention, experts and channels so that together they cost at most this mean KL per "
    "position, in nats, as `ovspec eval fidelity` reports it.",
)
@default_option(
    "--positions",
    512,
    "With --target-kl: positions at which settings are compared with dense passes, over all texts.",
    type=click.IntRange(ROWS),
)
@default_option("--max-texts", 16, "Texts to read at most.", type=COUNT)
@default_option("--max-tokens", 4096, "Tokens to read of a text.", type=COUNT)
@default_option(
    "--stride", 128, "Tokens between two selections that are compared.", type=click.IntRange(ROWS)
)
@property_option
@json_flag
@weight_options
@selection_options
def calibrate(
    model: Path,
    data: Path,
    anchors: int | None,
    overlap: float | None,
    target_kl: float | None,
    positions: int,
    max_texts: int,
    max_tokens: int,
    stride: int,
    properties: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Choose settings of sparse verification from your texts.

    The model reads the texts densely while every layer selects blocks; layers with similar lists share an
    anchor layer. With --target-kl, the amounts of attention, experts and feed-forward channels follow from
    that one number; an amount that is given as an option is kept, and a part of which less than 5% could be
    left out stays whole: if all do, nothing is written, and the exit code is 2. The results are written to
    ovspec_config.json, which supplies every setting that a later call of sparse verification does not give.
    """
    check_options(anchors, overlap, target_kl)
    given = sparse_from(options)
    config = folder_config(model)
    sparse = attention_of(given, config, target_kl is not None)
    limit = min(max_tokens, config.model.max_position_embeddings or max_tokens)
    texts = tokenized(model, read_texts(data)[:max_texts], limit)
    chosen_properties = dict(properties_from(properties))
    if "CACHE_DIR" in chosen_properties:
        raise ValueError("--property CACHE_DIR: what calibration runs is not kept; leave it out")
    graph = read_model(openvino_core(), model)
    target = TargetCalibration(given, graph) if target_kl is not None else None
    if limits := expert_config("native", given):
        limits.check(moe_layers(graph))
    observers: list[Observer] = target.observers if target else []
    meter = OverlapMeter(graph, sparse, chosen_properties, observers)
    check_anchors(anchors, meter.layers)
    measured = measure(meter, texts, stride)
    del meter
    if anchors is None and overlap is None:
        anchors = len(measured.default_anchors())
    chosen = measured.choose(anchors, overlap)
    found = None
    if target is not None and target_kl is not None:
        selecting = replace(sparse, anchor_layers=chosen)
        found = target.search(model, selecting, texts, positions, target_kl, chosen_properties)
        if not given.given(AMOUNT_FIELDS + EXPERT_FIELDS + CHANNEL_FIELDS):
            found.check_worth(target_kl)
    config.verify = with_settings(config.verify, found.sparse if found else given, chosen)
    path = config.save(model)
    if as_json:
        body = report(measured, chosen, config.verify, path)
        print_json(body | target_report(target, found, target_kl))
    else:
        show(measured, chosen, path)
        if found:
            show_target(found, target_kl)


def check_options(anchors: int | None, overlap: float | None, target_kl: float | None) -> None:
    """Refuse numbers out of range, and options that do not go together."""
    if target_kl is not None and not 0.0 < target_kl < math.inf:
        raise ValueError(f"--target-kl {target_kl}: expected a finite number of nats above 0")
    if anchors is not None and overlap is not None:
        raise ValueError(f"--anchors {anchors} and --overlap {overlap} exclude each other: give one")
    if overlap is not None and not 0.0 <= overlap <= 1.0:
        raise ValueError(f"--overlap {overlap}: expected a share between 0 and 1")


def attention_of(given: SparseVerify, config: OvspecConfig, searched: bool) -> SparseVerify:
    """How blocks are selected while the layers' lists are compared, by the user's settings or the folder's.

    Where the amount is to be searched for, all lengths of text select.
    """
    alone = dict.fromkeys(EXPERT_FIELDS + CHANNEL_FIELDS)
    sparse = replace(calibrated(replace(given, **alone), config), **alone)
    if searched and not given.given(AMOUNT_FIELDS):
        return replace(sparse, **dict.fromkeys(AMOUNT_FIELDS) | {"coverage": 0.9})
    return sparse


def folder_config(folder: Path) -> OvspecConfig:
    """The folder's configuration, or a new one for a folder that optimum-cli wrote."""
    info = ModelInfo.read(folder)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--model {folder}: the folder can't be written; copy it to where you may write")
    return OvspecConfig.load(folder) or OvspecConfig(model=info.section(model_name(folder)))


def check_anchors(anchors: int | None, layers: tuple[int, ...]) -> None:
    """Refuse a number of anchors that the model has no layers for, before the long work."""
    if anchors is not None and not 1 <= anchors <= len(layers):
        expected = f"1 to {len(layers)}, the layers of this model that can select"
        raise ValueError(f"--anchors {anchors}: expected {expected}")


def tokenized(folder: Path, texts: list[str], limit: int) -> list[NDArray[np.int64]]:
    """Token ids of the texts, of each at most so many."""
    tokenizer = read_tokenizer(folder)
    return [np.array(encode(tokenizer, text)[:limit], np.int64) for text in texts]


def measure(meter: OverlapMeter, texts: list[NDArray[np.int64]], stride: int) -> LayerOverlap:
    """Run the model, with a progress bar where someone watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading texts", total=sum(map(len, texts)))
        return meter.measure(texts, stride, lambda tokens: progress.advance(task, tokens))


def with_settings(old: SparseVerify | None, given: SparseVerify, anchors: tuple[int, ...]) -> SparseVerify:
    """The settings with new anchors and what was given beside them.

    Another amount of a part replaces the old one.
    """
    settings = {
        entry.name: value
        for entry in fields(given)
        if entry.name != "anchor_layers" and (value := getattr(given, entry.name)) is not None
    }
    old = old or SparseVerify()
    for group in (AMOUNT_FIELDS, EXPERT_FIELDS, CHANNEL_FIELDS):
        replaced = set(group)
        if not settings.keys() & replaced:
            continue
        if settings.keys() & {"L0", "rho"}:
            replaced -= {"L0", "rho"}
        old = replace(old, **dict.fromkeys(replaced))
    return replace(old, anchor_layers=anchors, **settings)


def report(
    measured: LayerOverlap, chosen: tuple[int, ...], settings: SparseVerify, path: Path
) -> dict[str, object]:
    """What `--json` prints."""
    default = measured.default_anchors()
    return {
        "config": str(path),
        "verify": settings.to_json(),
        "passes": measured.passes,
        "tokens": measured.tokens,
        "layers": list(measured.layers),
        "overlap": [[round(float(value), 4) for value in row] for row in measured.overlap],
        "overlap_with_anchor": [round(value, 4) for value in measured.with_anchor(chosen)],
        "default_anchor_layers": list(default),
        "overlap_with_default_anchor": [round(value, 4) for value in measured.with_anchor(default)],
    }


def show(measured: LayerOverlap, chosen: tuple[int, ...], path: Path) -> None:
    """Print the table."""
    default = measured.default_anchors()
    overlaps = [measured.with_anchor(anchors) for anchors in (chosen, default)]
    rows = []
    for layer, mine, rule in zip(measured.layers, *overlaps, strict=True):
        anchor = max(anchor for anchor in chosen if anchor <= layer)
        rows.append([str(layer), "itself" if anchor == layer else str(anchor), f"{mine:.2f}", f"{rule:.2f}"])
    print_rows(("layer", "anchor", "overlap with it", "overlap with the default rule's"), rows)
    means = [sum(values) / len(values) for values in overlaps]
    click.echo(
        f"{measured.passes} selections in {measured.tokens} tokens; mean overlap {means[0]:.2f} with "
        f"{len(chosen)} anchors, {means[1]:.2f} with the default rule's {len(default)}"
    )
    click.echo(f"anchor_layers {','.join(map(str, chosen))} written to {path}")
