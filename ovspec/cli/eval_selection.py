"""`ovspec eval selection`: what a rule of selection keeps of the attention, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.bench import check_outputs
from ovspec.cli.options.common import (
    anchors_option,
    json_option,
    model_option,
    prompts_options,
    properties_from,
    property_option,
    selection_options,
    sparse_from,
)
from ovspec.cli.options.forms import COUNT, default_option, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import show_report, with_progress
from ovspec.eval.prompts import read_prompts
from ovspec.eval.selection import SelectionEval
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.modes.verify_mode import calibrated
from ovspec_models import ModelInfo, OvspecConfig

COMMON = ("model", "prompts", "context", "rows", "passes", "rule", "budget", "properties", "json_path")


@click.command(cls=ShortHelpCommand, common=COMMON)
@model_option
@prompts_options
@typed_option("--context", COUNT, "Cut longer texts to their first tokens.")
@default_option(
    "--rows", 5, "Rows of a pass: a token and a draft of one less.", type=click.IntRange(1, MAX_VERIFY_ROWS)
)
@default_option("--passes", 20, "Passes at the end of each text.", type=COUNT)
@property_option
@json_option
@selection_options
@anchors_option
def selection(
    model: Path,
    prompts: Path,
    limit: int | None,
    context: int | None,
    rows: int,
    passes: int,
    properties: tuple[str, ...],
    json_path: str | None,
    anchor_layers: str | None,
    **options: Any,
) -> None:
    """See what block selection keeps of the attention, by layer, on your texts.

    Exact attention masses stand beside the lists of the rule. Where the rule keeps less than the best blocks
    for all rows, its estimate loses attention; where the best blocks keep little, the budget is too small.
    """
    config = OvspecConfig.load(model)
    ModelInfo.read(model).check_calibration(config)
    sparse = calibrated(sparse_from(options, anchor_layers), config)
    texts = read_prompts(prompts)[:limit]
    check_outputs(json_path)
    evaluation = SelectionEval(model, texts, sparse, rows, passes, context)
    chosen = dict(properties_from(properties))
    report = with_progress(len(texts), lambda step: evaluation.run(chosen, step))
    show_report(report.as_json(), json_path, report.tables(), [], report.notes())
