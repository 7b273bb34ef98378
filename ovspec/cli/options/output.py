"""Output of the commands: tables, progress, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table

from ovspec_models.folder.files import replace_file

Result = TypeVar("Result")
# Without a terminal a table has this width, so that its columns are not wrapped.
_PIPE_WIDTH = 140


def print_table(table: Table) -> None:
    """Print a table whole: in a terminal that is too narrow, lines are wrapped and nothing is cut off."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    unlimited = console.options.update(width=10_000, max_width=10_000)
    needed = Measurement.get(console, unlimited, table)
    # Columns that may not be wrapped would be cut off.
    whole = all(column.no_wrap for column in table.columns)
    if (needed.maximum if whole else needed.minimum) > console.width:
        console = Console(file=sys.stdout, width=needed.maximum, soft_wrap=True)
    console.print(table)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table of text cells under the names of its columns."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    print_table(table)


def with_progress(num_steps: int, run: Callable[[Callable[[str], None]], Result]) -> Result:
    """Run long work, with a progress bar if standard error is a terminal.

    The work calls its argument at the begin of each step, `num_steps` times.
    """
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        # `run` calls this when a step begins, so the bar counts the steps that have ended.
        task = progress.add_task("", total=num_steps, completed=-1)
        return run(lambda step: progress.update(task, advance=1, description=step))


def show_report(
    body: Mapping[str, Any],
    json_path: str | None,
    tables: Iterable[Table],
    lines: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> None:
    """Print lines, tables and notes, and write `body` to the file of `--json`; `-` prints that alone."""
    save_report(body, json_path)
    if json_path == "-":
        return
    for line in lines:
        click.echo(line)
    for table in tables:
        print_table(table)
    for line in notes:
        click.echo(line)


def save_report(body: Mapping[str, Any], json_path: str | None) -> None:
    """Write `body` to the file of `--json`, if one is given; `-` prints it."""
    if json_path == "-":
        print_json(body)
    elif json_path is not None:
        save_text(json.dumps(body, indent=2), Path(json_path))


def say(step: str) -> None:
    """Print a step of long work to standard error."""
    click.echo(f"ovspec: {step}", err=True)


def warn(line: str) -> None:
    """Print a warning to standard error."""
    say(f"warning: {line}")


def print_json(body: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(body, indent=2))


def save_text(text: str, path: Path) -> None:
    """Write figures to a file; where that fails they are printed, so that no long run is lost."""
    try:
        replace_file(path, (text + "\n").encode())
    except OSError as error:
        click.echo(text)
        raise OSError(
            f"{path} can't be written ({error.strerror}): what was measured is printed; make room, or "
            "name another file"
        ) from error
