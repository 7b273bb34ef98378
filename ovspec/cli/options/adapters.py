"""`--adapter`: LoRA adapters of a command's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ovspec.adapters.adapter import Adapter
from ovspec.adapters.adapter_config import AdapterBlend, AdapterConfig
from ovspec.pipeline.loaded_pipeline import LoadedPipeline

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


def adapters_from(options: dict[str, Any]) -> dict[str, AdapterConfig]:
    """The pipeline's `adapters` argument from `adapter_option`, which is taken out; empty without any.

    Raises:
        ValueError: a file that holds no adapter, or as `AdapterConfig`.
    """
    given: tuple[str, ...] | AdapterConfig = options.pop("adapters", ())
    if isinstance(given, AdapterConfig):  # of a server, whose requests name theirs
        return {"adapters": given}
    if not given:
        return {}
    config = AdapterConfig()
    for text in given:
        file, alpha = _parted(text)
        config.add(Adapter(file), alpha)
    return {"adapters": config}


def served_adapters(given: Sequence[str], model: str) -> dict[str, AdapterConfig]:
    """Adapters by their names, from `served_adapter_option`.

    Args:
        model: the name of the model beside them.

    Raises:
        ValueError: a name that is missing or given twice, or a file that holds no adapter.
    """
    found = dict[str, AdapterConfig]()
    for text in given:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise ValueError(f"--adapter {text}: expected NAME=FILE")
        if name == model or name in found:
            raise ValueError(f"--adapter {text}: {name} is served already; give another name")
        found[name] = AdapterConfig(Adapter(file))
    return found


def checked(load: Callable[[], LoadedPipeline], adapters: Mapping[str, AdapterConfig]) -> LoadedPipeline:
    """A pipeline for whose model these adapters are: refused before a client asks for them.

    Raises:
        ValueError: one of them is for another model.
    """
    pipeline = load()
    for config in adapters.values():
        pipeline.runner.adapters.check(AdapterBlend.of(config))
    return pipeline


def _parted(text: str) -> tuple[str, float]:
    """File and alpha; without a number behind the last "=" all of it is the file's name."""
    file, equals, alpha = text.rpartition("=")
    try:
        return (file, float(alpha)) if equals and file else (text, 1.0)
    except ValueError:
        return text, 1.0
