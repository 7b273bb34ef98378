"""A click group whose commands are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyCommands(click.Group):
    """Imports a command when it is run or its help is shown; `modules`: `module:attribute` of each."""

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*self._modules, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._modules[cmd_name].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
