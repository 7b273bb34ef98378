"""Which model a measurement takes: a folder, or random weights of a real shape."""

from __future__ import annotations

import argparse
from pathlib import Path

from ovspec.bench.source import ModelSource


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options of a measurement, those of its model among them."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", type=Path, help="a folder in place of a shape")
    options.add_argument("--shape", default="qwen3-0.6b")
    options.add_argument("--layers", type=int)
    return options


def source_of(given: argparse.Namespace) -> ModelSource:
    """The model that these options name."""
    if given.model:
        return ModelSource.from_folder(given.model)
    return ModelSource.from_shape(given.shape, given.layers, None, "int8")
