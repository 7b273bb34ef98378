"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from ovspec.verify.verify_config import FFN_RULES, PER_LAYER_FIELDS, SparseVerify, Verify
from ovspec_models import OvspecConfig
from ovspec_transforms import CHANNEL_SCORES, EXPERT_RULES

Command = TypeVar("Command", bound=Callable[..., Any])


property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="OpenVINO property, e.g. INFERENCE_PRECISION_HINT=f32; repeatable.",
)


experts_option = click.option(
    "--experts",
    type=click.Choice(["native", "stock"]),
    help="Routed experts of a mixture: our operation, or OpenVINO's.  [default: as --attention]",
)


ffn_option = click.option(
    "--ffn",
    type=click.Choice(["native", "stock"]),
    help="Gated MLPs of dense layers: our operation, or OpenVINO's.  [default: ours where they are limited "
    "by --ffn-rule top_k or a threshold]",
)


linear_option = click.option(
    "--linear",
    type=click.Choice(["native", "stock"]),
    help="Linear layers: our operation, whose rows do not depend on each other, or OpenVINO's.  [default: "
    "ours, unless --attention is stock]",
)


def verify_options(command: Command) -> Command:
    """`--verify` and what shapes a sparse one."""
    for option in reversed(
        [
            click.option(
                "--verify",
                type=click.Choice(["dense", "sparse", "commit"]),
                default="dense",
                show_default=True,
                help="Verification; sparse is lossy, commit makes it lossless.",
            ),
        ]
    ):
        command = option(command)
    anchors = click.option("--anchor-layers", help="Sparse: layers that select blocks, e.g. 0,1,2,6,10.")
    return selection_options(anchors(weight_options(command)))


def selection_options(command: Command) -> Command:
    """What sparse attention reads, all but its anchors."""
    for option in reversed(SELECTION_OPTIONS):
        command = option(command)
    return command


def weight_options(command: Command) -> Command:
    """What a sparse verification reads of the weights."""
    for option in reversed(WEIGHT_OPTIONS):
        command = option(command)
    return command


SELECTION_OPTIONS = [
    click.option("--l0", "--L0", "L0", type=int, help="Sparse: tokens up to which it stays dense."),
    click.option("--rho", type=float, help="Sparse: share of the tokens beyond L0 that is read."),
    click.option("--budget", type=int, help="Sparse: a fixed budget in tokens instead of L0 and rho."),
    click.option(
        "--coverage", type=float, help="Sparse: share of the estimated attention to read instead of a budget."
    ),
    click.option(
        "--selection-query",
        "query",
        type=click.Choice(["last", "union"]),
        help="Sparse: select with the last accepted token, or with all draft rows.",
    ),
    click.option(
        "--key-summary",
        "summary",
        type=click.Choice(["mean", "min_max"]),
        help="Sparse: what stands for a block's keys.",
    ),
    click.option("--sink-blocks", type=int, help="Sparse: blocks at the start that are always read."),
    click.option("--local-blocks", type=int, help="Sparse: blocks at the end that are always read."),
    click.option("--refresh-interval", type=int, help="Sparse: verification steps that a block list serves."),
]
WEIGHT_OPTIONS = [
    click.option(
        "--expert-budget",
        metavar="N[,N...]",
        help="Sparse: experts of a layer that a pass reads, for all layers or one by one; -1: no limit.",
    ),
    click.option(
        "--expert-rule",
        type=click.Choice(EXPERT_RULES),
        help="Sparse: what the budget counts: experts of the pass with the largest mass, experts that a row "
        "drops below a share, or experts of a row.  [default: mass]",
    ),
    click.option(
        "--expert-share-bound",
        metavar="P[,P...]",
        help="Sparse, rule share: part of a row's routing weight below which its lowest experts are dropped.",
    ),
    click.option(
        "--ffn-density",
        metavar="P[,P...]",
        help="Sparse: share of the channels of a feed-forward layer that a pass reads.",
    ),
    click.option(
        "--ffn-rule",
        type=click.Choice(FFN_RULES),
        help="Sparse: which channels: those with the highest activations, or, as calibrated for the model, "
        "always the same ones, or the groups with the highest activations.  [default: top_k]",
    ),
    click.option(
        "--ffn-threshold",
        metavar="X[,X...]",
        help="Sparse: instead of it, the least activation of a channel that is read.",
    ),
    click.option(
        "--ffn-score",
        type=click.Choice(CHANNEL_SCORES),
        help="Sparse: a channel's activation, over the rows of a draft.  [default: max]",
    ),
]
# Fields of SparseVerify whose option has another name.
_OPTION_NAMES = {"L0": "l0", "query": "selection-query", "summary": "key-summary"}


def sparse_from(options: dict[str, Any], anchor_layers: str | None = None) -> SparseVerify:
    """The sparse verification that the options of `selection_options` and `weight_options` describe.

    They are taken out.

    Raises:
        ValueError: a bad value.
    """
    anchors = int_list("--anchor-layers", anchor_layers) if anchor_layers else None
    given = {entry.name: options.pop(entry.name) for entry in fields(SparseVerify) if entry.name in options}
    for name in PER_LAYER_FIELDS:
        if given.get(name) is not None:
            parse = int_list if name == "expert_budget" else float_list
            numbers: tuple[float, ...] = parse(_option_name(name), given[name])
            given[name] = numbers[0] if len(numbers) == 1 else numbers
    return SparseVerify(anchor_layers=anchors, **given)


def verify_from(options: dict[str, Any]) -> Verify:
    """The pipeline's `verify` argument from the options of `verify_options`, which are taken out.

    Raises:
        ValueError: options of sparse verification beside `--verify dense`, or a bad value.
    """
    if options.pop("verify") != "dense":
        return sparse_from(options, options.pop("anchor_layers"))
    for entry in fields(SparseVerify):
        if (value := options.pop(entry.name)) is not None:
            raise ValueError(
                f"{_option_name(entry.name)} {value} contradicts --verify dense: add --verify sparse or "
                "commit, or leave it out"
            )
    return "dense"


def _option_name(field: str) -> str:
    return f"--{_OPTION_NAMES.get(field, field.replace('_', '-'))}"


def int_list(name: str, text: str) -> tuple[int, ...]:
    """Numbers of a comma-separated option.

    Raises:
        ValueError: something else than whole numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected whole numbers separated by commas") from None


def float_list(name: str, text: str) -> tuple[float, ...]:
    """Numbers of a comma-separated option.

    Raises:
        ValueError: something else than numbers.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected numbers separated by commas") from None


def properties_from(pairs: tuple[str, ...]) -> dict[str, Any]:
    """OpenVINO properties of repeated `--property KEY=VALUE` options."""
    properties: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--property {pair!r}: expected KEY=VALUE")
        properties[key] = value
    return properties


def draft_folder(model: Path, draft_model: str) -> Path | None:
    """Where the draft model lies: `auto` takes the one exported below the model, `none` goes without."""
    if draft_model == "none":
        return None
    if draft_model != "auto":
        return Path(draft_model)
    config = OvspecConfig.load(model) if model.is_dir() else None
    return model / config.draft_model if config and config.draft_model else None
