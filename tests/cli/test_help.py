"""`--help` fits one screen, and `--help-all` shows every option."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from ovspec.cli import cli
from ovspec.cli.options.help import ShortHelpCommand, subcommands

COMMANDS = {path: command for path, command in subcommands((), cli) if isinstance(command, ShortHelpCommand)}


def test_the_commands_with_many_options_have_a_short_help() -> None:
    assert {("generate",), ("bench", "verify"), ("eval", "fidelity"), ("calibrate",)} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_one_screen(path: tuple[str, ...]) -> None:
    run = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)
    assert run.exit_code == 0
    lines = run.output.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "--help-all" in lines[-1]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_all_shows_every_option(path: tuple[str, ...]) -> None:
    run = CliRunner().invoke(cli, [*path, "--help-all"], terminal_width=80)
    assert run.exit_code == 0
    shown = {word.rstrip(",") for line in run.output.splitlines() for word in line.split()[:2]}
    options = [parameter for parameter in COMMANDS[path].params if isinstance(parameter, click.Option)]
    missing = [opt for option in options for opt in option.opts if opt not in shown]
    assert not missing


def test_a_common_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="budgett"):
        ShortHelpCommand("generate", params=[click.Option(["--budget"])], common=("budgett",))
