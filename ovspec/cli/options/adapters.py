"""`--adapter`: LoRA adapters of a command's answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ovspec.adapters.adapter import Adapter
from ovspec.adapters.adapter_config import AdapterConfig
from ovspec.adapters.adapter_file import reading_bytes
from ovspec.memory.machine_memory import available_bytes

adapter_option = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="FILE[=ALPHA]",
    help="LoRA adapter, a safetensors file, times ALPHA (1.0); repeatable.",
)

served_adapter_option = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FILE",
    help="LoRA adapter, a safetensors file, which requests name as their model; repeatable.",
)


def adapters_from(options: Mapping[str, Any]) -> AdapterConfig | None:
    """The pipeline's `adapters` argument from `adapter_option`; `None` without any.

    Raises:
        ValueError: a file that holds no adapter or for which memory does not suffice, or as `AdapterConfig`.
    """
    config = AdapterConfig()
    for text in options["adapters"]:
        file, alpha = _parted(text)
        config.add(_read(file, options), alpha)
    return config or None


def served_adapters(options: Mapping[str, Any], model: str) -> dict[str, AdapterConfig]:
    """Adapters by their names, from `served_adapter_option`.

    Args:
        model: the name of the model beside them.

    Raises:
        ValueError: a name that is missing or given twice, a cluster, or as `adapters_from`.
    """
    found = dict[str, AdapterConfig]()
    for text in options["adapters"]:
        if options["ray"]:
            raise ValueError(f"--adapter {text}: a cluster has none; leave it or --ray out")
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise ValueError(f"--adapter {text}: expected NAME=FILE")
        if name == model or name in found:
            raise ValueError(f"--adapter {text}: {name} is served already; give another name")
        found[name] = AdapterConfig(_read(file, options))
    return found


def beside(named: Mapping[str, AdapterConfig]) -> AdapterConfig | None:
    """The pipeline's `adapters` argument where requests name them, and use none by themselves."""
    return AdapterConfig([(one.get_adapters()[0], 0.0) for one in named.values()]) or None


def _read(file: str, options: Mapping[str, Any]) -> Adapter:
    """Read a file for which memory suffices, as far as `memory_options` say so."""
    room = math.inf if options["no_memory_check"] else options["memory_limit"] or available_bytes()
    if (needed := reading_bytes(Path(file))) > room:
        raise ValueError(
            f"--adapter {file}: reading it takes up to {needed / 1e9:.2f} GB, {room / 1e9:.2f} GB are "
            "available; give fewer or smaller adapters, or allow more with --memory-limit SIZE or "
            "--no-memory-check"
        )
    return Adapter(file)


def _parted(text: str) -> tuple[str, float]:
    """File and alpha; without a number behind the last "=" all of it is the file's name."""
    file, equals, alpha = text.rpartition("=")
    try:
        return (file, float(alpha)) if equals and file else (text, 1.0)
    except ValueError:
        return text, 1.0
