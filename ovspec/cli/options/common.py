"""Options that several commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal

import click

from ovspec.cli.options.forms import COUNT, MODEL, PATH, bounded, default_option, given_model, typed_option
from ovspec.cli.options.help import GENERAL, Command, option_group
from ovspec.drafters import Assistant, Auto
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec_models import OvspecConfig
from ovspec_models.folder.sparse_verify import PER_LAYER_FIELDS, SparseVerify
from ovspec_transforms import RULES

_SELECTION_TITLE = "Sparse verification: attention"

model_option = click.option(
    "-m", "--model", type=MODEL, required=True, help="Folder with the model's IR, GGUF file, or hub id."
)


def data_option(help_text: str) -> Callable[[Command], Command]:
    """`--data`, a file of texts."""
    return typed_option("--data", PATH, help_text, required=True, metavar="FILE.jsonl")


property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="OpenVINO property, e.g. INFERENCE_PRECISION_HINT=f32; repeatable.",
)
json_option = click.option(
    "--json", "json_path", metavar="FILE", help="Write the figures to FILE; - prints them."
)
prompts_options = option_group(
    GENERAL,
    typed_option(
        "--prompts",
        PATH,
        'One JSON string or {"prompt": "..."} per line.',
        required=True,
        metavar="FILE.jsonl",
    ),
    typed_option("--limit", COUNT, "Only the first prompts of the file."),
)
max_new_tokens_option = option_group(
    GENERAL, default_option("--max-new-tokens", 128, "Tokens per prompt.", type=click.IntRange(2))
)
_NATIVE_OR_STOCK = click.Choice(["native", "stock"])
linear_option = typed_option(
    "--linear",
    _NATIVE_OR_STOCK,
    "Linear layers: ovspec's operation, or OpenVINO's.  [default: native, unless --attention is stock]",
)
backend_options = option_group(
    "Device and operations",
    default_option("--device", "CPU", "OpenVINO device."),
    typed_option(
        "--attention",
        _NATIVE_OR_STOCK,
        "Verification attention: native is ovspec's operation, for CPUs, stock is OpenVINO's.  "
        "[default: native on CPU]",
    ),
    typed_option(
        "--experts",
        _NATIVE_OR_STOCK,
        "Routed experts of a mixture: ovspec's operation, or OpenVINO's.  [default: as --attention]",
    ),
    typed_option(
        "--ffn",
        _NATIVE_OR_STOCK,
        "Gated MLPs of dense layers: native is the operation GatedMLP, stock leaves them to --linear.  "
        "[default: native where their channels are limited]",
    ),
    linear_option,
    property_option,
)


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, such as 6GB or 6GiB."""

    name = "SIZE"
    _UNITS: ClassVar = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes, at least 1."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([kmgt]?)(i?)b)?", str(value), re.IGNORECASE)
        size = 0
        if found:
            number, prefix, binary = found.groups()
            size = int(Decimal(number) * (1024 if binary else 1000) ** self._UNITS[(prefix or "").lower()])
        if not 1 <= size < 2**63:
            self.fail(f"{str(value)[:40]!r}: expected a size such as 6GB, 6.5GiB or 800MB", param, ctx)
        return size


cache_size_option = typed_option(
    "--cache-size", _Size(), "Keys and values, e.g. 2GB.  [default: what the memory plan leaves]"
)
memory_options = option_group(
    "Memory",
    typed_option(
        "--memory-limit", _Size(), "Memory that may be planned for, e.g. 6GB.  [default: what is free]"
    ),
    click.option("--no-memory-check", is_flag=True, help="Start even if the plan does not fit in memory."),
)
_verify_option = option_group(
    "Verification",
    default_option(
        "--verify",
        "dense",
        "dense, sparse (lossy) or commit.",
        type=click.Choice(["dense", "sparse", "commit"]),
        metavar="MODE",
    ),
)
anchors_option = option_group(
    _SELECTION_TITLE,
    click.option("--anchor-layers", help="Sparse, rule paper: layers that select blocks, e.g. 0,1,2,6,10."),
)


def memory_limit_from(options: dict[str, Any]) -> float | None:
    """The pipeline's `memory_limit` argument from the options of `memory_options`, which are taken out."""
    limit: int | None = options.pop("memory_limit")
    unchecked: bool = options.pop("no_memory_check")
    if unchecked and limit is not None:
        raise ValueError("--memory-limit and --no-memory-check exclude each other: give one")
    return math.inf if unchecked else limit


def verify_options(command: Command) -> Command:
    """`--verify` and the settings of sparse verification."""
    return _verify_option(selection_options(anchors_option(weight_options(command))))


def prefill_from(options: dict[str, Any]) -> SparsePrefill | None:
    """The pipeline's `prefill` from the options of `prefill_options`, which are taken out; `None`: dense."""
    mode = options.pop("prefill", "dense")
    given = {entry.name: options.pop(f"prefill_{entry.name}", None) for entry in fields(SparsePrefill)}
    if mode == "sparse":
        return SparsePrefill(**given)
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"--prefill-{name.lower()} {value} contradicts --prefill dense: add --prefill sparse, or "
                "leave it out"
            )
    return None


prefill_options = option_group(
    "Prompts",
    default_option(
        "--prefill",
        "dense",
        "dense or sparse (lossy): how prompts are read.",
        type=click.Choice(["dense", "sparse"]),
        metavar="MODE",
    ),
    click.option(
        "--prefill-l0",
        "prefill_L0",
        type=bounded(int),
        help="Sparse prefill: tokens up to which it stays dense.",
    ),
    typed_option("--prefill-rho", float, "Sparse prefill: share of the tokens beyond them that is read."),
    typed_option(
        "--prefill-coverage",
        float,
        "Sparse prefill: share of the estimated attention to read, instead of L0 and rho.",
    ),
)
selection_options = option_group(
    _SELECTION_TITLE,
    click.option("--l0", "--L0", "L0", type=bounded(int), help="Sparse: tokens up to which it stays dense."),
    typed_option("--rho", float, "Sparse: share of the tokens beyond L0 that is read."),
    typed_option("--budget", int, "Sparse: tokens to read, instead of L0 and rho."),
    typed_option(
        "--coverage", float, "Sparse: share of the estimated attention to read instead of a budget."
    ),
    click.option(
        "--selection-rule",
        "rule",
        type=click.Choice(RULES),
        help="Sparse: select by the attention of all rows in every layer (default), or as the paper does.",
    ),
    typed_option("--sink-blocks", int, "Sparse: blocks at the start that are always read."),
    typed_option("--local-blocks", int, "Sparse: blocks at the end that are always read."),
)
weight_options = option_group(
    "Sparse verification: experts and feed-forward channels",
    click.option(
        "--expert-budget",
        metavar="N[,N...]",
        help="Sparse: experts of a layer that a pass reads, for all layers or one by one; -1: no limit.",
    ),
    click.option(
        "--ffn-density",
        metavar="P[,P...]",
        help="Sparse: share of the channels of a feed-forward layer that a pass reads.",
    ),
)
# Fields of SparseVerify whose option has another name.
_OPTION_NAMES = {"L0": "l0", "rule": "selection-rule"}


def sparse_from(options: dict[str, Any], anchor_layers: str | None = None) -> SparseVerify:
    """Make `SparseVerify` from the options of `selection_options` and `weight_options`, and remove them."""
    anchors = int_list("--anchor-layers", anchor_layers) if anchor_layers else None
    given = {entry.name: options.pop(entry.name) for entry in fields(SparseVerify) if entry.name in options}
    for name in PER_LAYER_FIELDS:
        if given.get(name) is not None:
            parse = int_list if name == "expert_budget" else float_list
            numbers: tuple[float, ...] = parse(_option_name(name), given[name])
            given[name] = numbers[0] if len(numbers) == 1 else numbers
    return SparseVerify(anchor_layers=anchors, **given)


def verify_from(options: dict[str, Any]) -> Literal["dense"] | SparseVerify:
    """The pipeline's `verify` argument from the options of `verify_options`, which are taken out."""
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
    """The numbers in the value of a comma-separated option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected whole numbers separated by commas") from None


def float_list(name: str, text: str) -> tuple[float, ...]:
    """The numbers in the value of a comma-separated option."""
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
        if key in properties:
            raise ValueError(f"--property {key} is given twice: leave one out")
        properties[key] = value
    return properties


def draft_folder(model: Path, draft_model: str, drafter: str | None = None) -> Path | None:
    """Folder of the draft model: `none` is no draft model; `auto` is the one exported with the model.

    Only some drafters have a use for the latter.
    """
    if draft_model not in ("auto", "none"):
        return given_model(draft_model)
    if draft_model == "none" or drafter not in (None, Assistant.name, Auto.name):
        return None
    config = OvspecConfig.load(model) if model.is_dir() else None
    return model / config.draft_model if config and config.draft_model else None
