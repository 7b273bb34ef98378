"""Forms that many options have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ovspec.cli.help import Command

# No count and no duration is larger; what is, would only fail later.
_MOST = 2**31 - 1


class _Finite(click.FloatRange):
    """A number of a range that is no infinity, NaN, or too large for a clock."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        return _checked(self, super().convert(value, param, ctx), param, ctx)


class _Count(click.IntRange):
    """A number of things."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        return _checked(self, super().convert(value, param, ctx), param, ctx)


def _checked(
    kind: click.FloatRange | click.IntRange,
    number: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    if not number <= _MOST:
        kind.fail(f"{str(number)[:20]} is not in the range x<2**31", param, ctx)
    return number


PATH = click.Path(path_type=Path)
COUNT = _Count(1)
COUNT_FROM_ZERO = _Count(0)
ABOVE_ZERO = _Finite(0, min_open=True)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def default_option(
    name: str, default: object, help_text: str | None = None, **settings: Any
) -> Callable[[Command], Command]:
    """An option whose help shows its default; `settings` are further arguments of `click.option`."""
    return click.option(name, default=default, show_default=True, help=help_text, **settings)


def typed_option(name: str, kind: Any, help_text: str, **settings: Any) -> Callable[[Command], Command]:
    """An option of the type `kind` without a default that its help shows."""
    return click.option(name, type=kind, help=help_text, **settings)
