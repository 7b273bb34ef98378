"""`ovspec cache`: what prompts begin with, read once and kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.adapters import adapter_option, adapters_from
from ovspec.cli.options.bench import check_writable
from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.pipeline import pipeline_from, pipeline_options
from ovspec.errors import InvalidValueError
from ovspec.pipeline.prefix_files import load_prefix, save_prefix


@click.group()
def cache() -> None:
    """Keep the keys and values of a text, such as a system prompt, in a file for later starts."""


@cache.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--system", help="System message of chats; the file holds what all of them begin with.")
@click.option("--prompt", help="The beginning of prompts that do not pass a chat template.")
@adapter_option
@pipeline_options
def save(out: Path, system: str | None, prompt: str | None, **options: Any) -> None:
    """Read a text with a model, and write its keys and values to OUT."""
    need_extra("cache", "safetensors")
    text = prompt if system is None else system
    if text is None or None not in (system, prompt):
        raise InvalidValueError("give one of --system and --prompt")
    adapters = adapters_from(options)
    check_writable("OUT", out, [Path(one.name) for one in adapters.get_adapters()] if adapters else ())
    pipeline, _ = pipeline_from({**options, "adapters": adapters, "do_sample": False})
    tokens = save_prefix(pipeline, out, text, is_system_message=system is not None)
    click.echo(f"{out}: {tokens} tokens, {out.stat().st_size / 1e6:.1f} MB")


@cache.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@adapter_option
@pipeline_options
def load(file: Path, **options: Any) -> None:
    """Say whether FILE fits a model with these options, and how many tokens it gives."""
    need_extra("cache", "safetensors")
    pipeline, _ = pipeline_from({**options, "adapters": adapters_from(options), "do_sample": False})
    click.echo(f"{file}: {load_prefix(pipeline, file)} tokens are cached")
