"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ovspec.verify_config import SparseVerify, Verify
from ovspec_models import OvspecConfig

Command = TypeVar("Command", bound=Callable[..., Any])


property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="OpenVINO property, e.g. INFERENCE_PRECISION_HINT=f32; repeatable.",
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
                help="Verification attention; sparse is lossy, commit makes it lossless.",
            ),
            click.option("--l0", "L0", type=int, help="Sparse: tokens up to which it stays dense."),
            click.option("--rho", type=float, help="Sparse: share of the tokens beyond L0 that is read."),
            click.option(
                "--budget", type=int, help="Sparse: a fixed budget in tokens instead of L0 and rho."
            ),
            click.option("--anchor-layers", help="Sparse: layers that select blocks, e.g. 0,1,2,6,10."),
        ]
    ):
        command = option(command)
    return command


def verify_from(
    verify: str, L0: int | None, rho: float | None, budget: int | None, anchor_layers: str | None
) -> Verify:
    """The pipeline's `verify` argument from the options.

    Raises:
        ValueError: options of sparse verification beside `--verify dense`, or a bad value.
    """
    if verify == "dense":
        given = {"--l0": L0, "--rho": rho, "--budget": budget, "--anchor-layers": anchor_layers}
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} {value} contradicts --verify dense: add --verify sparse or commit, or leave "
                    "it out"
                )
        return "dense"
    anchors = int_list("--anchor-layers", anchor_layers) if anchor_layers else None
    return SparseVerify(L0=L0, rho=rho, budget=budget, anchor_layers=anchors)


def int_list(name: str, text: str) -> tuple[int, ...]:
    """Numbers of a comma-separated option.

    Raises:
        ValueError: something else than whole numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected whole numbers separated by commas") from None


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
