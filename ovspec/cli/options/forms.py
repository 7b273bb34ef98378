"""Forms that many options have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.help import Command
from ovspec.cli.options.output import say, warn
from ovspec_models.sources import model_folder

PATH = click.Path(path_type=Path)


class _Model(click.Path):
    """A model's folder, GGUF file, or name on a hub, as the folder of its IR."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The folder, made of a file or fetched where it is none."""
        return value if isinstance(value, Path) else given_model(value)


MODEL = _Model()


def given_model(model: str) -> Path:
    """The folder of a model that is given by its folder, GGUF file or name; what it takes goes to stderr."""
    return model_folder(model, report=say, warn=warn)


class _Bounded:
    """The part of a number's type that refuses what is no finite number of 64 bits.

    click takes nan and inf for numbers of any range; further in they pass comparisons, or end in an error of
    NumPy or OpenVINO.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, ctx)  # type: ignore[misc]
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)  # type: ignore[attr-defined]
        if not -(2**63) <= number < 2**64:
            self.fail(f"{value} is not in the range -2**63<=x<2**64.", param, ctx)  # type: ignore[attr-defined]
        return number


class Whole(_Bounded, click.types.IntParamType):
    """A whole number, of `least` at least, which the help does not show: it has 24 lines."""

    def __init__(self, least: int | None = None) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, ctx)
        if self._least is not None and number < self._least:
            self.fail(f"{value} is not in the range x>={self._least}.", param, ctx)
        return number


class _Number(_Bounded, click.types.FloatParamType):
    """A finite number."""


class _WholeRange(_Bounded, click.IntRange):
    """A whole number of a range."""


class _NumberRange(_Bounded, click.FloatRange):
    """A finite number of a range."""


class _Seconds(_NumberRange):
    """A duration that a clock can count."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, ctx)
        if number >= 2**31:
            self.fail(f"{value} is not in the range x<2**31.", param, ctx)
        return number


COUNT = _WholeRange(1)
ABOVE_ZERO = _NumberRange(0, min_open=True)
SECONDS = _Seconds(0, min_open=True)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def bounded(kind: Any) -> Any:
    """The type of an option: for numbers, of click's kind, one that takes finite ones of 64 bits only."""
    if kind is int:
        return Whole()
    if kind is float:
        return _Number()
    if type(kind) is click.IntRange:
        return _WholeRange(kind.min, kind.max, kind.min_open, kind.max_open)
    if type(kind) is click.FloatRange:
        return _NumberRange(kind.min, kind.max, kind.min_open, kind.max_open)
    return kind


def default_option(
    name: str, default: object, help_text: str | None = None, **settings: Any
) -> Callable[[Command], Command]:
    """An option whose help shows its default; `settings` are further arguments of `click.option`."""
    kind = bounded(settings.pop("type", type(default)))
    return click.option(name, default=default, show_default=True, type=kind, help=help_text, **settings)


def typed_option(name: str, kind: Any, help_text: str, **settings: Any) -> Callable[[Command], Command]:
    """An option of the type `kind` without a default that its help shows."""
    return click.option(name, type=bounded(kind), help=help_text, **settings)
