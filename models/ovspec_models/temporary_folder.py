"""Where optimum-intel puts the compressed model before it takes the place of the exported one."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def compressed_within(folder: Path) -> Iterator[None]:
    """Let optimum-intel write the compressed model into `folder`, as long as the context lasts.

    It takes the system's folder for temporary files, and renames from there: that fails when `folder` is on
    another file system, takes memory where the other one is a tmpfs, and a killed export leaves it there.
    """
    from optimum.intel.openvino import quantization

    original = quantization.TemporaryDirectory
    quantization.TemporaryDirectory = functools.partial(original, dir=folder)
    try:
        yield
    finally:
        quantization.TemporaryDirectory = original
