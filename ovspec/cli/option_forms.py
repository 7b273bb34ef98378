"""Forms that many options have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ovspec.cli.help import Command

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(1)
ABOVE_ZERO = click.FloatRange(0, min_open=True)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def default_option(
    name: str, default: object, help_text: str | None = None, **settings: Any
) -> Callable[[Command], Command]:
    """An option whose help shows its default; `settings` are further arguments of `click.option`."""
    return click.option(name, default=default, show_default=True, help=help_text, **settings)


def typed_option(name: str, kind: Any, help_text: str, **settings: Any) -> Callable[[Command], Command]:
    """An option of the type `kind` without a default that its help shows."""
    return click.option(name, type=kind, help=help_text, **settings)
