"""Put native operations into an exported IR, which then needs the extension library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

import ovspec_ops
from ovspec_transforms import TransformReport, sparse_ffn, sparse_moe

# Transforms by the name that ovspec_config.json records.
BAKED: dict[str, Callable[[ov.Model, bool], TransformReport]] = {
    "sparse_moe": sparse_moe,
    "sparse_ffn": sparse_ffn,
}
_XML, _BIN = "openvino_model.xml", "openvino_model.bin"


@dataclass(frozen=True, slots=True)
class Baked:
    """Result of the replacement in an IR.

    Attributes:
        operations: names of the transforms whose operations the IR contains.
        left: layers that were not replaced, one line each.
    """

    operations: tuple[str, ...]
    left: tuple[str, ...]


def bake_operations(folder: Path, names: Sequence[str], allow_partial: bool = False) -> Baked:
    """Apply the named transforms to the IR of `folder`.

    Weights keep their format; the constants of the new IR can be memory-mapped like those of the old one.

    Args:
        folder: holds `openvino_model.xml` and its `.bin`, which are replaced.
        names: out of `BAKED`.
        allow_partial: leave layers of an unknown form as they are instead of raising.

    Raises:
        ValueError: a layer of an unknown form (the message names it), or nothing to replace.
        RuntimeError: the native library does not load.
    """
    core = ov.Core()
    ovspec_ops.load(core)
    model = core.read_model(folder / _XML)
    done: list[str] = []
    left: list[str] = []
    for name in names:
        report = BAKED[name](model, allow_partial)
        left += report.left
        if report.count:
            done.append(name)
        if not report.count and not report.left:
            left.append(f"the whole model: it has no layer for {name}")
    # The constants are mapped from the file that will be replaced.
    fresh = folder / "with_operations.xml"
    ov.save_model(model, fresh, compress_to_fp16=False)
    del model
    fresh.with_suffix(".bin").replace(folder / _BIN)
    fresh.replace(folder / _XML)
    return Baked(tuple(done), tuple(left))
