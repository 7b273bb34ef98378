"""`ovspec bench prompt`: time to the first token and between tokens, by mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from time import perf_counter, process_time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai

from ovspec.bench.footprint import folder_of
from ovspec.bench.memory import check_models_fit
from ovspec.bench.rounds import check_at_least, check_names, check_once, check_positions, name_of, rotated
from ovspec.bench.source import ModelSource
from ovspec.modes.sparse_prefill import PROMPT_PIECE
from ovspec.pipeline.pipeline import LLMPipeline

Tick = Callable[[str], None]
# Pipeline and arguments of each mode. Stock is OpenVINO's attention and linear layers under our engine.
MODES: Mapping[str, tuple[Any, Mapping[str, str]]] = {
    "genai": (openvino_genai.LLMPipeline, {"ATTENTION_BACKEND": "PA"}),
    "genai_sdpa": (openvino_genai.LLMPipeline, {"ATTENTION_BACKEND": "SDPA"}),
    "stock": (LLMPipeline, {"attention": "stock"}),
    "dense": (LLMPipeline, {}),
    "sparse": (LLMPipeline, {"prefill": "sparse"}),
}
DEFAULT_MODES = ("genai", "stock", "dense", "sparse")
OURS = ("dense", "sparse")
_CHUNKED = ("stock", *OURS)


def _pipeline_of(mode: str) -> tuple[Any, Mapping[str, object]]:
    """Pipeline and arguments of a mode; `dense:256` is `dense` with chunks of 256 tokens."""
    name, colon, size = mode.partition(":")
    pipeline, arguments = MODES[name]
    if not colon:
        return pipeline, arguments
    least = PROMPT_PIECE if name == "sparse" else 1
    if name not in _CHUNKED or not size.isdecimal() or int(size) < least:
        raise ValueError(
            f"--mode {mode}: only {', '.join(_CHUNKED)} take a chunk size, as in dense:256, and sparse at "
            f"least {PROMPT_PIECE}"
        )
    return pipeline, {**arguments, "max_num_batched_tokens": int(size)}


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One prompt that was read.

    Attributes:
        seconds: from the call to its first token.
        cpu_seconds: processor time of the call, of all threads; other load on the machine lengthens it less.
        density: share of the context that the prompt read.
        token_ms: milliseconds between the tokens after the first, a mean; `None` without such tokens.
    """

    seconds: float
    cpu_seconds: float
    density: float
    token_ms: float | None


@dataclass(frozen=True, slots=True)
class PromptBench:
    """What to time.

    Attributes:
        contexts: tokens of a prompt; random, so that no prompt finds its beginning in a cache.
        modes: out of `MODES`, also with the tokens of a chunk of the prompt, as in `dense:256`.
        repeat: timed prompts per mode and length, after one untimed warm-up.
        max_new_tokens: of an answer; from 2 on, plain decoding is timed too.
        properties: OpenVINO properties for every mode; without one, GenAI runs at its defaults.
    """

    source: ModelSource
    contexts: tuple[int, ...]
    modes: tuple[str, ...]
    repeat: int
    max_new_tokens: int = 1
    properties: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens = self.max_new_tokens
        check_at_least(1, context=min(self.contexts), repeat=self.repeat, max_new_tokens=tokens)
        check_positions(self.source, max(self.contexts), tokens)
        check_names("--mode", sorted({name_of(mode) for mode in self.modes}), MODES)
        check_once("--context", self.contexts)
        check_once("--mode", self.modes)
        for mode in self.modes:
            _pipeline_of(mode)
        if not {name_of(mode) for mode in self.modes} <= {*OURS}:
            self.source.check_stock(f"--mode {','.join(self.modes)}")

    @property
    def num_steps(self) -> int:
        """Number of times that `run` calls its `tick`."""
        return 1 + len(self.modes) * (1 + len(self.contexts) * (1 + self.repeat))

    def run(self, tick: Tick = lambda step: None) -> dict[tuple[int, str], list[PromptRecord]]:
        """The timed prompts by context and mode; the modes take turns with the same prompt."""
        check_models_fit(self.source, self.modes, max(self.contexts))
        rng = np.random.default_rng(0)
        records: dict[tuple[int, str], list[PromptRecord]] = {
            point: [] for point in product(self.contexts, self.modes)
        }
        with ExitStack() as stack:
            tick("loading the model")
            folder = stack.enter_context(folder_of(self.source))
            pipelines = {}
            for mode in self.modes:
                tick(f"compiling {mode}")
                pipeline, arguments = _pipeline_of(mode)
                pipelines[mode] = pipeline(folder, "CPU", **arguments, **self.properties)
            for context, turn in product(self.contexts, range(1 + self.repeat)):
                prompt = ov.Tensor(rng.integers(1, self.source.vocab_size, (1, context)))
                for mode in rotated(self.modes, turn):
                    tick(f"{context} tokens, round {turn} of {self.repeat}: {mode}")
                    record = _read(pipelines[mode], prompt, self.max_new_tokens)
                    if turn:
                        records[context, mode].append(record)
        return records


def _read(pipeline: Any, prompt: ov.Tensor, tokens: int) -> PromptRecord:
    config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
    started, cpu = perf_counter(), process_time()
    metrics = pipeline.generate(prompt, config).perf_metrics
    seconds, cpu_seconds = perf_counter() - started, process_time() - cpu
    first = metrics.get_ttft().mean / 1000 if tokens > 1 else seconds
    density = metrics.get_prefill_density() if isinstance(pipeline, LLMPipeline) else 1.0
    token_ms = 1000 * (seconds - first) / (tokens - 1) if tokens > 1 else None
    return PromptRecord(first, cpu_seconds, density, token_ms)
