"""`ovspec bench verify`: time of one pass, backends in turn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, median

import openvino as ov

from ovspec.bench.backends import (
    BACKENDS,
    DEFAULT_BACKENDS,
    MODELS,
    SELECTION,
    SPARSE,
    Subject,
    Timing,
    load_runner,
)
from ovspec.bench.bandwidth import method, read_bandwidth
from ovspec.bench.memory import models_fit
from ovspec.bench.report import Record, Report
from ovspec.bench.rounds import Spread, check_at_least, check_names, check_once, check_positions, rotated
from ovspec.bench.source import ModelSource
from ovspec.bench.weight_traffic import WeightTraffic
from ovspec.devices.devices import is_cpu
from ovspec.eval.in_force import SelectionInForce
from ovspec.memory.device_memory import device_bytes
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.operations.linear_backend import LinearBackend
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify

Tick = Callable[[str], None]
Point = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class VerifyBench:
    """What to time.

    Attributes:
        contexts: tokens in the cache before a pass.
        tokens: rows of a pass.
        sparse: what the sparse backends may read.
        repeat: timed passes per record, after one untimed warm-up.
        backends: out of `BACKENDS`.
        properties: OpenVINO properties for every backend; without one, stock runs at the plugin's defaults.
        linear: backend of the linear layers of dense and sparse, as in `ModelRunner`.
    """

    source: ModelSource
    contexts: tuple[int, ...]
    tokens: tuple[int, ...]
    sparse: SparseVerify
    repeat: int
    backends: tuple[str, ...] = DEFAULT_BACKENDS
    properties: Mapping[str, object] = field(default_factory=dict)
    linear: LinearBackend | None = None
    device: str = "CPU"

    def __post_init__(self) -> None:
        check_at_least(1, context=min(self.contexts), tokens=min(self.tokens), repeat=self.repeat)
        if max(self.tokens) > MAX_VERIFY_ROWS:
            raise ValueError(
                f"--tokens {max(self.tokens)}: a verification pass takes at most {MAX_VERIFY_ROWS} tokens"
            )
        check_positions(self.source, max(self.contexts), max(self.tokens))
        check_once("--context", self.contexts)
        check_once("--tokens", self.tokens)
        check_names("--backend", self.backends, BACKENDS)
        if not is_cpu(self.device) and "native" in self.compiled_models:
            raise ValueError(
                f"--device {self.device} --backend {','.join(self.backends)}: dense and sparse are for CPUs; "
                "expected some of stock,sparse_stock"
            )
        if "stock" in self.backends:
            self.source.check_stock(f"--backend {','.join(self.backends)}")

    @property
    def num_steps(self) -> int:
        """Number of times that `run` calls its `tick`."""
        passes = len(self.contexts) * len(self.tokens) * len(self.backends) * (1 + self.repeat)
        return 2 + len(self.compiled_models) + passes

    @property
    def compiled_models(self) -> tuple[str, ...]:
        """The compiled models behind the backends, each once."""
        return tuple(dict.fromkeys(MODELS[backend] for backend in self.backends))

    def run(self, tick: Tick = lambda step: None, interleaved: bool | None = None) -> Report:
        """Time everything.

        Args:
            tick: called with a description before each step, `num_steps` times.
            interleaved: hold all compiled models at once and take turns pass by pass, or time one after
                the other; `None`: interleaved if memory suffices.
        """
        if interleaved is None:
            tokens = max(self.contexts) + max(self.tokens)
            available = device_bytes(self.device)
            interleaved = models_fit(self.source, self.compiled_models, tokens, available)
        tick("loading the model")
        model = self.source.load(native="native" in self.compiled_models)
        traffic = WeightTraffic.of(model)
        bandwidth, threads = 0.0, 0
        timings: dict[Point, list[Timing]] = {}
        settings: dict[str, dict[str, str | int | None]] = {}
        selection: SelectionInForce | None = None
        for names in [self.compiled_models] if interleaved else [(name,) for name in self.compiled_models]:
            subjects = {name: self._compile(name, model, tick) for name in names}
            if not threads and is_cpu(self.device):
                tick("measuring the memory bandwidth")
                threads = next(iter(subjects.values())).num_threads
                bandwidth = read_bandwidth(threads)
            backends = {b: subjects[MODELS[b]] for b in self.backends if MODELS[b] in subjects}
            settings |= {backend: subject.settings() for backend, subject in backends.items()}
            selecting = (subject.runner for backend, subject in backends.items() if backend in SPARSE)
            found = (one for runner in selecting if (one := SelectionInForce.of(runner)))
            selection = next(found, selection)
            timings |= self._time(backends, tick)
            # Two compiled models at once may be more than the memory holds.
            del subjects, backends, selecting, found
            gc.collect()
        # The tokens decide which experts are read.
        weights = None if traffic.num_experts else traffic.always
        return Report(
            source=self.source,
            interleaved=interleaved,
            repeat=self.repeat,
            num_threads=threads,
            bandwidth_gb_s=bandwidth,
            bandwidth_method=method(threads) if threads else "not measured",
            device=self.device,
            settings=settings,
            records=[
                self._record(point, timings[point], weights)
                for point in product(self.contexts, self.tokens, self.backends)
            ],
            sparse=self.sparse,
            selection=selection,
        )

    def _compile(self, name: str, model: ov.Model, tick: Tick) -> Subject:
        tick(f"compiling {name}")
        max_context = max(self.contexts) + max(self.tokens)
        # The clone shares the weights.
        runner = load_runner(
            ModelRunner,
            name,
            model.clone(),
            self.properties,
            self.sparse if any(MODELS[backend] == name for backend in SPARSE & {*self.backends}) else None,
            self.linear,
            self.device,
        )
        return Subject(runner, max_context, self.source.vocab_size)

    def _time(self, backends: Mapping[str, Subject], tick: Tick) -> dict[Point, list[Timing]]:
        timings: dict[Point, list[Timing]] = {}
        for context, tokens, turn in product(self.contexts, self.tokens, range(1 + self.repeat)):
            for backend in rotated(tuple(backends), turn):
                tick(f"context {context}, {tokens} tokens: {backend}")
                sparse = self.sparse if backend in SPARSE else None
                timing = backends[backend].time_pass(context, tokens, sparse)
                if turn:
                    timings.setdefault((context, tokens, backend), []).append(timing)
        return timings

    def _record(self, point: Point, timings: list[Timing], weight_bytes: int | None) -> Record:
        context, tokens, backend = point
        ms = [timing.ms for timing in timings]
        cache_bytes = mean(timing.cache_bytes for timing in timings)
        kinds = dict.fromkeys(kind for timing in timings for kind in timing.steps_ms)
        steps = {kind: median(timing.steps_ms.get(kind, 0.0) for timing in timings) for kind in kinds}
        selection = [steps[kind] for kind in SELECTION if kind in steps] if backend in SPARSE else []
        return Record(
            backend=backend,
            context=context,
            tokens=tokens,
            density=mean(timing.density for timing in timings),
            budget=self.sparse.budget_tokens(context + tokens) if backend in SPARSE else None,
            experts_read=_mean_known(timing.experts_read for timing in timings),
            ffn_density=_mean_known(timing.ffn_density for timing in timings),
            ms=Spread.of(ms),
            selection_ms=sum(selection) if selection else None,
            steps_ms=steps,
            gb_s=None if weight_bytes is None else (weight_bytes + cache_bytes) / median(ms) / 1e6,
        )


def _mean_known(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; `None` if there are none."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None
