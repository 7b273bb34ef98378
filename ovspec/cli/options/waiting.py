"""What is shown at a terminal while a model is loaded and a prompt is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ovspec.pipeline.generation_call import PromptProgress
from ovspec_models.sources import model_name


@contextmanager
def loading(model: Path, shown: bool = True, told: bool = False) -> Iterator[None]:
    """A moving bar with the seconds while the block loads a model, if standard error is a terminal.

    Args:
        shown: without it there is no bar.
        told: whether a line says afterwards how long it took, on a terminal or not.
    """
    name, started = model_name(model), time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with terminal_bar(shown, *columns) as bar:
        if bar is not None:
            bar.add_task(f"loading {name}", total=None)
        yield
    if told:
        click.echo(f"ovspec: {name} loaded in {time.perf_counter() - started:.1f} s", err=True)


@contextmanager
def reading(shown: bool = True) -> Iterator[PromptProgress | None]:
    """A bar of the prompt's tokens that have been read, which goes when all have been; `None` without it."""
    columns = (TextColumn("reading the prompt"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"))
    with terminal_bar(shown, *columns) as bar:
        if bar is None:
            yield None
            return
        task = bar.add_task("", total=None)  # known at the first call

        def show(read: int, total: int) -> None:
            bar.update(task, completed=read, total=total)
            if read >= total:
                bar.stop()

        yield show


@contextmanager
def terminal_bar(shown: bool, *columns: ProgressColumn) -> Iterator[Progress | None]:
    """A bar of these columns, if it is to be shown and standard error is a terminal; else `None`."""
    console = Console(stderr=True)
    if not (shown and console.is_interactive):
        yield None
        return
    # Rich would send what is printed meanwhile to standard error.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        yield progress
