"""`ovspec calibrate`: settings of sparse verification, measured on a user's texts."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from ovspec.calibrate.calibration import ROWS, Observer, observe
from ovspec.calibrate.target_calibration import TargetCalibration
from ovspec.cli.calibrate_target import show_target, target_report
from ovspec.cli.options.common import (
    data_option,
    model_option,
    properties_from,
    property_option,
    selection_options,
    sparse_from,
    weight_options,
)
from ovspec.cli.options.forms import COUNT, default_option, json_flag
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import print_json, warn
from ovspec.devices.devices import openvino_core
from ovspec.generation.inputs import encode, read_tokenizer
from ovspec.graphs.compile import read_model
from ovspec.modes.verify_mode import calibrated
from ovspec.operations.expert_budgets import expert_config
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.folder.jsonl import read_texts
from ovspec_models.folder.sparse_verify import AMOUNT_FIELDS, CHANNEL_FIELDS, EXPERT_FIELDS, SparseVerify
from ovspec_models.sources import model_name
from ovspec_transforms import moe_layers

COMMON = ("model", "data", "target_kl", "max_texts", "max_tokens", "budget", "properties", "as_json")


@click.command(cls=ShortHelpCommand, common=COMMON)
@model_option
@data_option('Texts, one JSON value per line: a string, or an object such as {"text": "..."}.')
@default_option(
    "--target-kl",
    0.035,
    "Set attention, experts and channels so that together they cost at most this mean KL per "
    "position, in nats, as `ovspec eval fidelity` reports it.",
    type=float,
)
@default_option(
    "--positions",
    512,
    "Positions at which settings are compared with dense passes, over all texts.",
    type=click.IntRange(ROWS),
)
@default_option("--max-texts", 16, "Texts to read at most.", type=COUNT)
@default_option("--max-tokens", 4096, "Tokens to read of a text.", type=COUNT)
@default_option(
    "--stride",
    128,
    "Tokens between two passes whose experts and channels are counted.",
    type=click.IntRange(ROWS),
)
@property_option
@json_flag
@weight_options
@selection_options
def calibrate(
    model: Path,
    data: Path,
    target_kl: float,
    positions: int,
    max_texts: int,
    max_tokens: int,
    stride: int,
    properties: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the amounts of sparse verification from your texts.

    Amounts of attention, experts and feed-forward channels follow from one number, --target-kl; an amount
    that is given as an option is kept, and a part of which less than 5% could be left out stays whole: if all
    do, nothing is written, and the exit code is 2. The results are written to ovspec_config.json, which
    supplies every setting that a later call of sparse verification does not give.
    """
    if not 0.0 < target_kl < math.inf:
        raise ValueError(f"--target-kl {target_kl}: expected a finite number of nats above 0")
    given = sparse_from(options)
    config = folder_config(model)
    limit = min(max_tokens, config.model.max_position_embeddings or max_tokens)
    texts = tokenized(model, read_texts(data)[:max_texts], limit)
    chosen_properties = dict(properties_from(properties))
    if "CACHE_DIR" in chosen_properties:
        raise ValueError("--property CACHE_DIR: what calibration runs is not kept; leave it out")
    graph = read_model(openvino_core(), model)
    target = TargetCalibration(given, graph)
    if limits := expert_config("native", given):
        limits.check(moe_layers(graph))
    if target.observers:
        read_densely(graph, target.observers, texts, stride, chosen_properties)
    found = target.search(model, rule_of(given, config), texts, positions, target_kl, chosen_properties)
    if not given.given(AMOUNT_FIELDS + EXPERT_FIELDS + CHANNEL_FIELDS):
        found.check_worth(target_kl)
    if found.joint.kl > target_kl:
        warn(
            f"--target-kl {target_kl:g} is not met: the amounts that are given cost a mean KL of "
            f"{found.joint.kl:.2g} with every other part whole; give larger ones, or fewer"
        )
    config.verify = with_settings(config.verify, found.sparse)
    path = config.save(model)
    if as_json:
        body = {"config": str(path), "verify": config.verify.to_json(), "tokens": sum(map(len, texts))}
        print_json(body | target_report(target, found, target_kl))
    else:
        show_target(found, target_kl)
        click.echo(f"written to {path}")


def rule_of(given: SparseVerify, config: OvspecConfig) -> SparseVerify:
    """By which rule blocks are selected: the user's, or the folder's."""
    alone = dict.fromkeys(EXPERT_FIELDS + CHANNEL_FIELDS)
    return replace(calibrated(replace(given, **alone), config), **alone)


def folder_config(folder: Path) -> OvspecConfig:
    """The folder's configuration, or a new one for a folder that optimum-cli wrote."""
    info = ModelInfo.read(folder)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--model {folder}: the folder can't be written; copy it to where you may write")
    config = OvspecConfig.load(folder)
    if config is None:
        return OvspecConfig(model=info.section(model_name(folder)))
    if info.differs_from(config.model):  # amounts of another model
        config.model, config.verify = info.section(model_name(folder)), None
    return config


def tokenized(folder: Path, texts: list[str], limit: int) -> list[NDArray[np.int64]]:
    """Token ids of the texts, of each at most so many.

    Raises:
        ValueError: all are shorter than a pass, so that nothing could be counted or compared.
    """
    tokenizer = read_tokenizer(folder)
    found = [np.array(encode(tokenizer, text)[:limit], np.int64) for text in texts]
    if (longest := max(map(len, found))) < ROWS:
        raise ValueError(
            f"--data: the longest of {len(found)} texts has {longest} tokens, as at most {limit} are read, "
            f"and a pass takes {ROWS}; give longer texts, or a larger --max-tokens"
        )
    return found


def read_densely(
    graph: ov.Model,
    observers: list[Observer],
    texts: list[NDArray[np.int64]],
    stride: int,
    properties: dict[str, object],
) -> None:
    """Let the observers see passes over the texts, with a progress bar where someone watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading texts", total=sum(map(len, texts)))
        observe(graph, properties, observers, texts, stride, lambda tokens: progress.advance(task, tokens))


def with_settings(old: SparseVerify | None, given: SparseVerify) -> SparseVerify:
    """The settings with those that were found and given.

    Another amount of a part replaces the old one, and another rule the old anchor layers.
    """
    settings = {
        entry.name: value for entry in fields(given) if (value := getattr(given, entry.name)) is not None
    }
    old = old or SparseVerify()
    if settings.get("rule", old.rule) != "paper":
        old = replace(old, anchor_layers=None)
    for group in (AMOUNT_FIELDS, EXPERT_FIELDS, CHANNEL_FIELDS):
        replaced = set(group)
        if not settings.keys() & replaced:
            continue
        if settings.keys() & {"L0", "rho"}:
            replaced -= {"L0", "rho"}
        old = replace(old, **dict.fromkeys(replaced))
    return replace(old, **settings)
