"""Write the generated pages: `python docs/build.py`. A test compares them with the committed ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import ovspec
import ovspec.drafters
import ovspec.rag
from ovspec.cli import cli
from ovspec.cli.options.help import GENERAL, ShortHelpCommand, parameter_groups, subcommands

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OPERATIONS = "custom_ops/ovspec_ops"
EXIT_CODES = {
    "0": "done",
    "1": "the command ran and found a fault: a self-check or a request of `bench serve` failed, or the "
    "lossless texts of `demo` differ",
    "2": "an error that the user can correct; one line on standard error says how",
    "3": "requests of `batch` were refused, or are left for the next run",
    "70": "a fault of ovspec; the lines on standard error say where to report it",
    "130": "Ctrl-C",
}
ENVIRONMENT = {
    "OVSPEC_DEBUG=1": "shows the traceback of an error, as `--debug` does",
    "OVSPEC_ISA": "instruction set of the native operations: `amx`, `avx512vnni`, `avx512`, `avx2vnni`, "
    "`avx2` or `plain`; one that the processor lacks is an error",
    "OVSPEC_EXTENSION_LIB": "path of the native library, in place of the installed one",
    "OVSPEC_API_KEY": "key of `serve` and `bench serve`, in place of `--api-key`",
    "RAY_ADDRESS": "cluster of `--ray`; without it, one is started on this machine",
}


def python_api() -> str:
    """The public names, from their docstrings."""
    parts = ["# Python API", "Made from the docstrings by `docs/build.py`."]
    for module in (ovspec, ovspec.drafters, ovspec.rag):
        parts.append(f"# {module.__name__}")
        for name in sorted(module.__all__):
            parts.extend(_described(f"{module.__name__}.{name}", getattr(module, name)))
    return "\n\n".join(parts) + "\n"


def command_line() -> str:
    """Every command with its arguments and options, in the groups of `--help-all`."""
    parts = ["# Command line", "Made from the commands by `docs/build.py`.", inspect.cleandoc(cli.help or "")]
    commands = list(subcommands(("ovspec",), cli))
    short = [f"`{' '.join(path[1:])}`" for path, command in commands if isinstance(command, ShortHelpCommand)]
    named = f"{', '.join(short[:-1])} and {short[-1]}"
    parts.append(f"These commands show common options with `--help`, all with `--help-all`:\n{named}.")
    parts.append(_table(("exit code", ""), EXIT_CODES))
    parts.append(
        _table(("environment variable", ""), {f"`{name}`": what for name, what in ENVIRONMENT.items()})
    )
    for path, command in commands:
        parts.append(f"## {' '.join(path)}")
        parts.append(inspect.cleandoc(command.help or ""))
        for title, parameters in parameter_groups(command).items():
            if title != GENERAL:
                parts.append(f"**{title}**")
            shown = (parameter for parameter in parameters if parameter.name != "help_all")
            if rows := [_row(command, parameter) for parameter in shown]:
                parts.append("\n".join(["| | | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def operations() -> str:
    """An index of the native operations, with the first sentence of each one's page."""
    parts = ["# Native operations", "Made from their pages by `docs/build.py`."]
    parts.append(
        "OpenVINO operations in C++, one folder each with kernel, NumPy reference and page. How they are "
        "built, dispatched and tested: [custom_ops](../custom_ops/README.md)."
    )
    lines = ["| operation | what it computes |", "|---|---|"]
    for page in sorted((ROOT / OPERATIONS).glob("*/README.md")):
        title, _, text = page.read_text(encoding="utf-8").partition("\n")
        paragraph = " ".join(text.strip().split("\n\n")[0].split())
        link = f"../{page.relative_to(ROOT).as_posix()}"
        lines.append(f"| [{title.removeprefix('# ')}]({link}) | {_cell(paragraph)} |")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _described(name: str, thing: Any) -> Iterator[str]:
    own = (getattr(thing, "__module__", "") or "").startswith("ovspec")
    if not own:
        yield f"## {name}"
        known = getattr(thing, "__module__", None)
        yield f"As in `{known.split('.')[0]}`." if known else f"An alias: `{thing}`."
        return
    yield f"## {name}{_signature(thing)}"
    yield _doc(thing)
    if not inspect.isclass(thing):
        return
    ours = [base for base in reversed(inspect.getmro(thing)) if base.__module__.startswith("ovspec")]
    for attribute, member in {name: value for base in ours for name, value in vars(base).items()}.items():
        if attribute.startswith("_") and attribute != "__call__":
            continue
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if isinstance(plain, property):
            yield f"### {attribute}"
        elif inspect.isfunction(plain) and attribute != "__call__":
            yield f"### {attribute}{_signature(plain)}"
        else:
            continue
        yield _doc(plain)


def _doc(thing: object) -> str:
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    # Sections of a docstring are indented lists; as code they keep their lines on every page.
    head, *sections = text.split("\n\n")
    blocks = [head, *(f"```text\n{part}\n```" if ":\n    " in part else part for part in sections)]
    return "\n\n".join(blocks)


def _signature(thing: Any) -> str:
    """Names and defaults alone: types are in the text, and print differently in every release of Python."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return ""
    parts, starred = [], False
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY)
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        plain = isinstance(default, (str, int, float, tuple, type(None)))
        shown = f"={default!r}" if plain else "=..."
        parts.append(f"{prefix}{parameter.name}{'' if default is parameter.empty else shown}")
    return "(" + ", ".join(parts).replace("*, *", "*") + ")"


def _table(titles: tuple[str, str], rows: dict[str, str]) -> str:
    lines = [f"| {name} | {text} |" for name, text in rows.items()]
    return "\n".join([f"| {titles[0]} | {titles[1]} |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _row(command: click.Command, parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        name = (parameter.metavar or parameter.name or "").upper()
        return f"| {name} | | {'' if parameter.required else 'may be left out'} |"
    assert isinstance(parameter, click.Option)
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    kind = ""
    if not parameter.is_flag:
        choices = getattr(parameter.type, "choices", None)
        kind = ", ".join(map(str, choices)) if choices else (parameter.metavar or parameter.type.name.upper())
    notes = [parameter.help or ""]
    if parameter.show_default and not parameter.is_flag:
        of_command = command.context_settings.get("default_map") or {}
        notes.append(f"[default: {of_command.get(parameter.name, parameter.default)}]")
    if parameter.required:
        notes.append("[required]")
    return f"| {names} | {_cell(kind)} | {_cell('  '.join(notes))} |"


PAGES = {"python-api.md": python_api, "cli.md": command_line, "operations.md": operations}


if __name__ == "__main__":
    for page_name, render in PAGES.items():
        (DOCS / page_name).write_text(render(), encoding="utf-8")
