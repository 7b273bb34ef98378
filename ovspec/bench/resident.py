"""Resident memory of a compiled model after a pass, each model in a fresh process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import openvino as ov

from ovspec.bench.backends import Subject, load_runner
from ovspec.bench.footprint_child import resident
from ovspec.bench.source import ModelSource
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.runtime.model_runner import ModelRunner
from ovspec.verify.verify_config import SparseVerify


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident memory of a process, bytes.

    Attributes:
        anonymous: `RssAnon`, memory of the process alone.
        mapped: `RssFile`, pages of mapped files, which the kernel may drop and read again.
    """

    anonymous: int
    mapped: int

    @classmethod
    def of_this_process(cls) -> Resident:
        """Current memory of this process, from /proc."""
        held = resident()
        return cls(held["anon"], held["file"])


@dataclass(frozen=True, slots=True)
class MemoryTask:
    """One pass of one compiled model.

    Attributes:
        source: the model.
        random_weights: IR file of a source without a folder; files are mapped in both cases.
        name: as in `load_runner`.
        context: tokens in the cache before the pass.
        tokens: rows of the pass.
        sparse: what the pass may read; `None` for all.
        properties: OpenVINO properties.
        linear: as in `load_runner`.
    """

    source: ModelSource
    random_weights: Path | None
    name: str
    context: int
    tokens: int
    sparse: SparseVerify | None
    properties: Mapping[str, object]
    linear: LinearBackend | None = None

    def run(self) -> Resident:
        """Compile, run the pass, read the memory of this process."""
        if self.random_weights is None:
            model = self.source.load(native=self.name == "native")
        else:
            model = ov.Core().read_model(self.random_weights)
        source = self.source
        runner = load_runner(
            ModelRunner,
            self.name,
            model,
            source.anchor_layers,
            self.properties,
            self.sparse,
            self.linear,
        )
        del model
        subject = Subject(runner, self.context + self.tokens, self.source.vocab_size)
        subject.time_pass(self.context, self.tokens, self.sparse)
        return Resident.of_this_process()

    def run_in_fresh_process(self) -> Resident:
        """`run` in a fresh process.

        Raises:
            RuntimeError: the process failed; the message has its last line of output.
        """
        command = "from ovspec.bench.resident import main; main()"
        ran = subprocess.run([sys.executable, "-c", command], input=pickle.dumps(self), capture_output=True)
        if ran.returncode != 0:
            reason = (ran.stderr.decode(errors="replace").strip().splitlines() or ["it was killed"])[-1]
            raise RuntimeError(f"memory of {self.name}: the process that measures it failed: {reason}")
        return Resident(**json.loads(ran.stdout.splitlines()[-1]))


def main() -> None:
    """Main function of the fresh process: reads the task from standard input, prints the figures."""
    task: MemoryTask = pickle.load(sys.stdin.buffer)
    print(json.dumps(asdict(task.run())))


def measure_resident(
    source: ModelSource,
    model: ov.Model,
    names: Sequence[str],
    context: int,
    tokens: int,
    sparse: SparseVerify | None,
    properties: Mapping[str, object],
    tick: Callable[[str], None],
    linear: LinearBackend | None = None,
) -> dict[str, Resident]:
    """Memory of several models after a pass, each in its own process that reads the IR from disk.

    Random weights are first written to a temporary folder; otherwise they would count as anonymous memory.
    """
    found = {}
    with _on_disk(source, model) as random_weights:
        for name in names:
            tick(f"memory of {name}")
            limits = None if name == "stock" else sparse
            task = MemoryTask(source, random_weights, name, context, tokens, limits, dict(properties), linear)
            found[name] = task.run_in_fresh_process()
    return found


@contextmanager
def _on_disk(source: ModelSource, model: ov.Model) -> Iterator[Path | None]:
    if source.folder is not None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ovspec-bench-") as folder:
        path = Path(folder) / "openvino_model.xml"
        ov.save_model(model, path, compress_to_fp16=False)
        yield path
