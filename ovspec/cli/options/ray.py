"""Options of commands that may run on a Ray cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.forms import ABOVE_ZERO, default_option, typed_option
from ovspec.cli.options.help import option_group


def _replicas(context: click.Context, option: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?", value)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if most < least:
        raise click.BadParameter(f"{value!r}: expected a number, or LEAST:MOST, such as 2 or 1:8")
    return least, most


ray_options = option_group(
    "Cluster",
    click.option("--ray", is_flag=True, help="Answer on the cluster of RAY_ADDRESS, or on one started here."),
    default_option(
        "--replicas",
        "1",
        "Engines; of two numbers, as many as the load needs.",
        callback=_replicas,
        metavar="N|LEAST:MOST",
    ),
    typed_option("--replica-cpus", ABOVE_ZERO, "Cores that each takes.  [default: those of this machine]"),
)


def replicas_of_a_machine(cluster: tuple[int, int, float] | None) -> int:
    """Replicas that this machine may have at a time, by what `cluster_from` returned."""
    if cluster is None:
        return 1
    _, most, cpus = cluster
    return max(1, min(most, int((os.cpu_count() or 1) // cpus)))


def cluster_from(options: dict[str, Any]) -> tuple[int, int, float] | None:
    """Take the options out: least and most replicas, and cores of each; `None` without `--ray`.

    The other options' paths are made absolute, for other processes.

    Raises:
        ValueError: Ray is not installed, or replicas are asked for without it.
    """
    (least, most), cpus = options.pop("replicas"), options.pop("replica_cpus")
    if not options.pop("ray"):
        if (least, most) != (1, 1) or cpus is not None:
            raise ValueError("--replicas and --replica-cpus need --ray; give it, or leave them out")
        return None
    need_extra("ray", "ray")
    for name, value in options.items():
        if isinstance(value, Path) or (name == "draft_model" and value and Path(value).is_dir()):
            options[name] = type(value)(os.path.realpath(value))
    return least, most, float(os.cpu_count() or 1) if cpus is None else cpus
