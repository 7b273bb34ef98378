"""The `ovspec` command."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from ovspec.cli.lazy_commands import LazyCommands
from ovspec.cli.options.failures import (
    INTERNAL_ERROR,
    INTERRUPTED,
    USER_ERROR,
    internal_fault,
    is_refusal,
    one_line,
    told,
)
from ovspec.cli.options.interrupts import Interrupts

COMMANDS = {
    "batch": "ovspec.cli.batch:batch",
    "bench": "ovspec.cli.bench.group:bench",
    "bundle": "ovspec.cli.bundle:bundle",
    "cache": "ovspec.cli.cache:cache",
    "calibrate": "ovspec.cli.calibrate:calibrate",
    "chat": "ovspec.cli.chat:chat",
    "completion": "ovspec.cli.completion:completion",
    "demo": "ovspec.cli.demo:demo",
    "eval": "ovspec.cli.eval:evaluate",
    "export": "ovspec.cli.export:export",
    "generate": "ovspec.cli.generate:generate",
    "info": "ovspec.cli.info:info",
    "rag": "ovspec.cli.rag:rag",
    "recommend": "ovspec.cli.recommend:recommend",
    "serve": "ovspec.cli.serve:serve",
    "train-head": "ovspec.cli.train_head:train_head",
}


@click.group(
    cls=LazyCommands,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="ovspec", prog_name="ovspec")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks; behind any command.")
def cli() -> None:
    """Sparse verification for speculative decoding on OpenVINO."""


def main() -> None:
    """Run the command line, and end with an exit code that says what happened.

    0: done. 2: the user can mend it; one line says how. 70: a fault of ovspec, with where to report it. 130:
    Ctrl-C. With `--debug` or OVSPEC_DEBUG=1 the traceback of an error is shown as well.
    """
    open_standard_streams()
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or os.environ.get("OVSPEC_DEBUG", "") not in ("", "0")
    with Interrupts() as interrupts:
        try:
            code = cli.main([word for word in arguments if word != "--debug"], standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(USER_ERROR)
        except click.ClickException as error:
            fail(error.format_message())
        except Exception as error:
            # An interrupt may come out of a library as another exception.
            if isinstance(error, click.Abort) or interrupts.seen:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                sys.exit(INTERRUPTED)
            if debug:
                sys.excepthook(type(error), error, error.__traceback__)
            flush_standard_output()
            if is_refusal(error):
                fail(told(error, flags_of(cli, arguments)))
            click.echo(internal_fault(error, debug), err=True)
            sys.exit(INTERNAL_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


def flags_of(command: click.Command, words: Sequence[str]) -> dict[str, str]:
    """The options of the command that the words call, by name of their parameter."""
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    named = ((option.name, word) for option in command.params for word in option.opts)
    return {str(name): word for name, word in reversed([*named]) if word.startswith("--")}


def fail(message: str) -> None:
    """Print one line and exit with 2."""
    click.echo(f"ovspec: error: {one_line(message)}", err=True)
    sys.exit(USER_ERROR)


def flush_standard_output() -> None:
    """Write what is buffered; where that fails, drop it, or Python would fail once more at its end."""
    with suppress(OSError, ValueError):  # it has no file, or is closed
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_standard_streams() -> None:
    """Stand-ins for standard streams that the caller closed (`<&-`, `2>&-`); a closed output is refused.

    A closed number would be given to the next file that is opened, and prints would go into that file. What
    the output's encoding lacks is written as Python does to standard error: \\xe9.
    """
    output_is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if output_is_closed:
        fail("standard output is closed: send it to a file, or to /dev/null where it is not wanted")
