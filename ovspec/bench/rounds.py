"""Helpers of the benchmarks that time their settings in rounds: order, spread, checks of options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ovspec.bench.source import ModelSource

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of the rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        return cls(median(values), min(values), max(values))


def rotated(settings: Sequence[T], turn: int) -> list[T]:
    """The settings in the order of a round: no setting always follows the same other one."""
    first = turn % len(settings)
    return [*settings[first:], *settings[:first]]


def check_names(option: str, names: Sequence[str], known: Collection[str]) -> None:
    """Refuse a name that is unknown or given twice."""
    if set(names) - set(known) or len(set(names)) < len(names):
        raise ValueError(f"{option} {','.join(names)}: expected some of {','.join(known)}, each once")


def check_once(option: str, numbers: Sequence[object]) -> None:
    """Refuse a setting that is named twice: its rounds would be counted as those of one, twice as many."""
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{option} {','.join(map(str, numbers))}: expected each once")


def name_of(mode: str) -> str:
    """The mode without a chunk size: `dense` of `dense:256`."""
    return mode.partition(":")[0]


def check_at_least(least: int, **values: int) -> None:
    """Refuse a number below `least`; the names are those of the options."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected at least {least}")


def check_positions(source: ModelSource, context: int, new_tokens: int) -> None:
    """Refuse a context beyond the model's positions."""
    limit = source.max_position_embeddings - new_tokens
    if context > limit:
        raise ValueError(
            f"--context {context}: {source.name} has {source.max_position_embeddings} positions; with "
            f"{new_tokens} new tokens give at most {limit}"
        )
