"""Resident memory of a compiled model after a pass, each model in a fresh process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import openvino as ov

from ovspec.bench.backends import Subject, load_runner
from ovspec.bench.source import ModelSource
from ovspec.model_runner import ModelRunner
from ovspec.verify_config import SparseVerify


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident memory of a process, bytes.

    Attributes:
        anonymous: `RssAnon`, what the process holds for itself alone.
        mapped: `RssFile`, pages of mapped files, which the kernel may drop and read again.
    """

    anonymous: int
    mapped: int

    @classmethod
    def of_this_process(cls) -> Resident:
        """As Linux counts it now."""
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss")}
        return cls(sizes["RssAnon"], sizes["RssFile"])


def resident_after_pass(
    source: ModelSource,
    name: str,
    context: int,
    tokens: int,
    sparse: SparseVerify | None,
    properties: Mapping[str, object],
) -> Resident:
    """Compile one of the models behind the backends, run one pass and read the process's memory.

    Args:
        source: with a folder, whose weights are mapped.
        name: as in `load_runner`.
        context: tokens in the cache before the pass.
        tokens: rows of the pass.
        sparse: what the pass may read; `None` for all.
        properties: OpenVINO properties.
    """
    model = source.load(native=name == "native")
    runner = load_runner(ModelRunner, name, model, source.anchor_layers, properties, sparse)
    del model
    Subject(runner, context + tokens, source.vocab_size).time_pass(context, tokens, sparse)
    return Resident.of_this_process()


def measure_resident(
    source: ModelSource,
    model: ov.Model,
    names: Sequence[str],
    context: int,
    tokens: int,
    sparse: SparseVerify | None,
    properties: Mapping[str, object],
    tick: Callable[[str], None],
) -> dict[str, Resident]:
    """`resident_after_pass` of several models, each in a process of its own that reads the IR from disk.

    Random weights are written to a temporary folder first: in a process that made them they would count.
    """
    found = {}
    with _on_disk(source, model) as stored:
        for name in names:
            tick(f"memory of {name}")
            limits = None if name == "stock" else sparse
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                job = fresh.submit(
                    resident_after_pass, stored, name, context, tokens, limits, dict(properties)
                )
                found[name] = job.result()
    return found


@contextmanager
def _on_disk(source: ModelSource, model: ov.Model) -> Iterator[ModelSource]:
    if source.folder is not None:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="ovspec-bench-") as folder:
        ov.save_model(model, Path(folder) / "openvino_model.xml", compress_to_fp16=False)
        yield replace(source, shape=None, folder=Path(folder))
