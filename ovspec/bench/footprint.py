"""`ovspec bench memory`: starts and resident memory of ovspec and OpenVINO GenAI."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import openvino as ov

from ovspec.bench import footprint_child
from ovspec.bench.rounds import check_at_least
from ovspec.bench.source import ModelSource
from ovspec_models import demo_pair_path

ENGINES = ("openvino_genai", "ovspec")
# ovspec's default cache precision, set for both engines.
_CACHE: Mapping[str, str] = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"}
NEW_TOKENS = 16
# Starts from a CACHE_DIR by name: the engine and its properties. OpenVINO GenAI reads back only the models of
# its SDPA backend; its default backend, paged attention, compiles at every start.
CACHED_STARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "openvino_genai, paged": ("openvino_genai", {"ATTENTION_BACKEND": "PA"}),
    "openvino_genai, SDPA": ("openvino_genai", {"ATTENTION_BACKEND": "SDPA"}),
    "ovspec": ("ovspec", {}),
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Medians of the starts of one engine.

    Attributes:
        start_s: seconds from the folder to a pipeline.
        first_token_s: seconds from the folder to the first token after a prompt of one token. OpenVINO GenAI
            reorders weights after its start, with the first pass.
        cpu_s: processor time until then in seconds.
        loaded_anon_bytes: anonymous resident memory (RssAnon) of the process after the start.
        anon_bytes: the same after the context was read and some tokens generated.
        file_bytes: resident memory of mapped files (RssFile), weights and libraries; the system can drop it.
    """

    engine: str
    start_s: float
    first_token_s: float
    cpu_s: float
    loaded_anon_bytes: int
    anon_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class CachedStart:
    """Medians of the starts of one engine from a CACHE_DIR, without the first start, which fills it.

    Attributes:
        name: in `CACHED_STARTS`.
        start_s, first_token_s, cpu_s, loaded_anon_bytes: as of `Footprint`.
        anon_bytes: anonymous resident memory after the first token.
    """

    name: str
    start_s: float
    first_token_s: float
    cpu_s: float
    loaded_anon_bytes: int
    anon_bytes: int


@dataclass(frozen=True, slots=True)
class FootprintBench:
    """What to measure.

    Attributes:
        context: prompt tokens in the cache at the end.
        repeat: starts of each engine, in turn.
        properties: OpenVINO properties for both, beside a u8 cache by token.
    """

    source: ModelSource
    context: int
    repeat: int
    properties: Mapping[str, Any]

    def __post_init__(self) -> None:
        most = self.source.max_position_embeddings - NEW_TOKENS
        if not 1 <= self.context <= most:
            raise ValueError(f"--context {self.context}: expected 1 to {most} for this model")
        check_at_least(1, repeat=self.repeat)

    @property
    def num_steps(self) -> int:
        """Number of processes that `run` starts."""
        return self.repeat * len(ENGINES) + (1 + self.repeat) * len(CACHED_STARTS)

    def run(
        self, tick: Callable[[str], None] = lambda step: None
    ) -> tuple[list[Footprint], list[CachedStart]]:
        """Start the engines in turn, each in a new process; also from a CACHE_DIR that is filled first."""
        found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
        cached: dict[str, list[dict[str, Any]]] = {name: [] for name in CACHED_STARTS}
        with folder_of(self.source) as folder, TemporaryDirectory(prefix="ovspec-bench-") as place:
            for name in cached:
                tick(f"{name}, which fills CACHE_DIR")
                self._start_cached(name, folder, place)
            for number in range(self.repeat):
                for engine in ENGINES:
                    tick(f"{engine}, start {number + 1}")
                    found[engine].append(self._start(engine, folder, self.context, {}))
                for name in cached:
                    tick(f"{name} from CACHE_DIR, start {number + 1}")
                    cached[name].append(self._start_cached(name, folder, place))
        return (
            [Footprint(engine, **_medians(runs, Footprint)) for engine, runs in found.items()],
            [CachedStart(name, **_medians(runs, CachedStart)) for name, runs in cached.items()],
        )

    def _start_cached(self, name: str, folder: Path, place: str) -> dict[str, Any]:
        engine, asked = CACHED_STARTS[name]
        return self._start(engine, folder, 0, {**asked, "CACHE_DIR": place})

    def _start(self, engine: str, folder: Path, context: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        task = {
            "engine": engine,
            "model": str(folder),
            "context": context,
            "vocab_size": self.source.vocab_size,
            "max_new_tokens": NEW_TOKENS,
            "properties": {**_CACHE, **self.properties, **asked},
        }
        command = [sys.executable, str(footprint_child.__file__), json.dumps(task)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise RuntimeError(f"{engine} failed in a process of its own: {said}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def _medians(runs: list[dict[str, Any]], kind: type[Footprint] | type[CachedStart]) -> dict[str, Any]:
    names = [field.name for field in fields(kind) if field.name in runs[0]]
    return {name: median(run[name] for run in runs) for name in names}


@contextmanager
def folder_of(source: ModelSource) -> Iterator[Path]:
    """The folder of the model; random weights are written to a temporary folder."""
    if source.folder is not None:
        yield source.folder
        return
    with TemporaryDirectory(prefix="ovspec-bench-") as name:
        folder, shape = Path(name), source.shape
        ov.save_model(source.load(native=False), folder / "openvino_model.xml", compress_to_fp16=False)
        # No text is generated; any tokenizer makes the folder complete.
        for path in demo_pair_path().glob("openvino_*tokenizer.*"):
            shutil.copy(path, folder)
        assert shape is not None
        config = json.dumps({**asdict(shape), "eos_token_id": 0})
        (folder / "config.json").write_text(config, encoding="utf-8")
        yield folder
