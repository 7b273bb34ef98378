"""Help in two sizes: `--help` shows the common options, `--help-all` shows every option by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
GENERAL = "Options"
_ALL = "ovspec.help_all"  # in the context's `meta` while `--help-all` is printed


def option_group(name: str, *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that adds `options` to a command; `--help-all` lists them under the title `name`."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
            parameters: list[click.Parameter] = command.__click_params__  # type: ignore[attr-defined]
            parameters[-1].group = name  # type: ignore[attr-defined]
        return command

    return decorate


def subcommands(
    path: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below `command`, by name, each with the words that call it; `path` calls `command`."""
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for name in sorted(command.list_commands(context)):
        found = command.get_command(context, name)
        assert found is not None
        yield (*path, name), found
        yield from subcommands((*path, name), found)


def parameter_groups(command: click.Command) -> dict[str, list[click.Parameter]]:
    """The parameters of a command by the title of their group, in the order of their declaration."""
    groups: dict[str, list[click.Parameter]] = {GENERAL: []}
    for parameter in command.params:
        groups.setdefault(getattr(parameter, "group", GENERAL), []).append(parameter)
    return groups


class ShortHelpCommand(click.Command):
    """A command whose `--help` fits one screen of 24 lines.

    Args:
        common: names of the parameters that `--help` shows, in this order.
    """

    def __init__(self, *args: Any, common: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = {str(parameter.name): parameter for parameter in self.params}
        if unknown := [name for name in common if name not in named]:
            raise ValueError(f"common={unknown}: {self.name} has no such parameters")
        self.common = [named[name] for name in common]
        self.params.append(_help_all_option(len(self.params)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or all of them by group."""
        if not ctx.meta.get(_ALL):
            _write(ctx, formatter, GENERAL, [*self.common, *self._help_options(ctx)])
            return
        for title, parameters in parameter_groups(self).items():
            if title == GENERAL and (help_option := self.get_help_option(ctx)):
                parameters.append(help_option)
            _write(ctx, formatter, title, parameters)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first paragraph of the description, or all of it."""
        whole = self.help
        if not ctx.meta.get(_ALL):
            self.help = (whole or "").split("\n\n")[0]
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = whole

    def _help_options(self, ctx: click.Context) -> list[click.Parameter]:
        options = [self.get_help_option(ctx), self.params[-1]]
        return [option for option in options if option is not None]


def _help_all_option(num_options: int) -> click.Option:
    def show(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help=f"Show all {num_options} options by group and exit.",
    )


def _write(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, parameters: Sequence[click.Parameter]
) -> None:
    rows = [record for parameter in parameters if (record := parameter.get_help_record(ctx)) is not None]
    with formatter.section(title):
        formatter.write_dl(rows)
