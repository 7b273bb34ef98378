"""Standard output of the commands."""

from __future__ import annotations

import sys

from rich.console import Console

# A table in a pipe keeps its columns whole: there is no terminal whose width it must keep to.
_PIPE_WIDTH = 140


def output_console() -> Console:
    """A console for tables on standard output."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
