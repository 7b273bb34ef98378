"""The timing of `ovspec bench schedule`: the schedule `auto` against every fixed number of draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from openvino_genai import GenerationConfig

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.backends import load_runner, random_context
from ovspec.bench.rounds import check_at_least, check_names, rotated
from ovspec.bench.source import ModelSource
from ovspec.bench.traced_runner import TraceDrafter, TracedRunner
from ovspec.drafters.drafter import Drafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.request import Request
from ovspec.eval.interval import Interval
from ovspec.generation.generation_config import resolve, updated
from ovspec.generation.inputs import encode
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.pipeline.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule, Schedule
from ovspec.verify.limits import MAX_NUM_ASSISTANT_TOKENS

Tick = Callable[[str], None]

_ROLL = "Lily has a red ball. Tom has a blue hat. Ben has a green cup. Mia has a big dog. "
REPETITIVE = (
    3 * _ROLL,
    3 * "One, two, three, jump! One, two, three, sing! One, two, three, run! ",
    '"Not today," said the bear. ' + 3 * '"Not today," said the fox. "Not today," said the bear. ',
)
CREATIVE = (
    "Once upon a time, there was a little boat that wanted to see the sea. It",
    "The old man opened the door and saw something that he had never seen before:",
    "In the middle of the night, Anna heard a strange sound in the garden. She",
)
# Greedy decoding of a small model soon repeats itself; sampling does not.
WORKLOADS: Mapping[str, dict[str, Any]] = {
    "repetitive": {},
    "creative": {"do_sample": True, "temperature": 0.8},
    "long": {},
}


@dataclass(slots=True)
class WorkloadRecord:
    """The rounds of a workload.

    Attributes:
        tokens_per_second: by setting, "auto" or a fixed number of draft tokens, round by round.
        auto_lengths: mean number of draft tokens that `auto` asked for, round by round.
        collapses: number of times that `auto` saw acceptance collapse.
    """

    tokens_per_second: dict[str, list[float]]
    auto_lengths: list[float]
    collapses: int

    @property
    def best(self) -> str:
        """The fixed setting with the highest median."""
        fixed = [setting for setting in self.tokens_per_second if setting != "auto"]
        return max(fixed, key=lambda setting: median(self.tokens_per_second[setting]))

    def ratio(self, setting: str, baseline: str) -> Interval:
        """Median of the tokens per second over those of another setting in the same round."""
        pairs = zip(self.tokens_per_second[setting], self.tokens_per_second[baseline], strict=True)
        return Interval.of_median([ours / theirs for ours, theirs in pairs])


@dataclass(frozen=True, slots=True)
class ScheduleBench:
    """What to time.

    Attributes:
        model: folder of the target of the workloads `repetitive` and `creative`.
        draft_model: folder of its draft model, `None` for a drafter that needs none.
        drafter: by name, as in `LLMPipeline`.
        source: the model of the workload `long`, behind a random context.
        context: tokens of that context.
        trace: decides how many of its draft tokens are accepted.
        lengths: fixed numbers of draft tokens; 0, plain decoding, is among them.
        skip_tokens: tokens of a generation before the clock runs.
        repeat: timed rounds, in each of which every setting generates once; one more warms up.
        cold: whether `auto` starts every generation without what it has learned.
    """

    model: Path
    draft_model: Path | None
    drafter: str | None
    source: ModelSource
    context: int
    trace: AcceptanceTrace
    workloads: tuple[str, ...]
    lengths: tuple[int, ...]
    max_new_tokens: int
    skip_tokens: int
    repeat: int
    cold: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names("--workload", self.workloads, WORKLOADS)
        if 0 not in self.lengths or any(not 0 <= k <= MAX_NUM_ASSISTANT_TOKENS for k in self.lengths):
            raise ValueError(
                f"--lengths {','.join(map(str, self.lengths))}: expected 0, which is plain decoding, and "
                f"numbers up to {MAX_NUM_ASSISTANT_TOKENS}"
            )
        check_at_least(1, context=self.context, repeat=self.repeat)
        if not 1 <= self.skip_tokens <= self.max_new_tokens - 2:
            raise ValueError(
                f"--skip-tokens {self.skip_tokens}: expected 1 to {self.max_new_tokens - 2}, which leaves "
                f"something of --max-new-tokens {self.max_new_tokens} to time"
            )

    @property
    def num_steps(self) -> int:
        """How often `run` calls its `tick`."""
        return len(self.workloads) * (1 + (1 + len(self.lengths)) * (1 + self.repeat))

    def run(self, tick: Tick = lambda step: None) -> dict[str, WorkloadRecord]:
        """Time every workload; settings take turns, generation by generation."""
        records = {}
        text: _Player | None = None
        for name in self.workloads:
            tick(f"{name}: loading the model")
            if name == "long":
                player = self._long_player()
            else:
                text = text or self._text_player()
                player = text
            records[name] = self._measure(name, player, tick)
        return records

    def _measure(self, name: str, player: _Player, tick: Tick) -> WorkloadRecord:
        settings: list[int | str] = ["auto", *self.lengths]
        record = WorkloadRecord({str(setting): [] for setting in settings}, [], 0)
        auto = AutoSchedule(MAX_NUM_ASSISTANT_TOKENS)
        for turn in range(1 + self.repeat):
            for setting in rotated(settings, turn):
                tick(f"{name}, round {turn} of {self.repeat}: {setting}")
                schedule: Schedule = auto if setting == "auto" else ConstantSchedule(int(setting))
                if setting == "auto" and self.cold:
                    schedule = AutoSchedule(MAX_NUM_ASSISTANT_TOKENS)
                metrics = self._generate(name, player, schedule, turn)
                if not turn:
                    continue
                # The first token is the prefill's.
                durations = metrics.m_durations[self.skip_tokens - 1 :]
                record.tokens_per_second[str(setting)].append(1e6 * len(durations) / sum(durations))
                if setting == "auto":
                    asked = metrics.num_assistant_tokens
                    record.auto_lengths.append(sum(asked) / len(asked))
                    record.collapses += metrics.acceptance_collapses
        return record

    def _generate(self, name: str, player: _Player, schedule: Schedule, turn: int) -> RawPerfMetrics:
        options = {"max_new_tokens": self.max_new_tokens, "ignore_eos": True, **WORKLOADS[name]}
        if WORKLOADS[name]:
            options["rng_seed"] = turn
        found = resolve(updated(GenerationConfig(), options), (), has_draft=True)
        prompts = player.prompts[name]
        prompt = prompts[turn % len(prompts)]
        request = Request(name, prompt, found, schedule=schedule)
        if player.cached is not None:
            assert isinstance(player.runner, TracedRunner)
            player.runner.replay(self.trace, commits=False)
            player.cached.length = self.context
            request.cached = player.cached, CachedSequence()
        player.engine.generate([request])
        return request.metrics

    def _text_player(self) -> _Player:
        if self.draft_model is None and self.drafter is None:
            raise ValueError(f"{self.model} has no draft model: give --draft-model DIR or --drafter NAME")
        draft = None if self.draft_model is None else draft_model(self.draft_model)
        pipeline = LLMPipeline(self.model, "CPU", draft_model=draft, drafter=self.drafter, **self.properties)
        tokenizer = pipeline.get_tokenizer()
        prompts = {
            name: [encode(tokenizer, text) for text in found]
            for name, found in (("repetitive", REPETITIVE), ("creative", CREATIVE))
        }
        return _Player(pipeline.runner, pipeline.engine.engine, prompts)

    def _long_player(self) -> _Player:
        source, rng = self.source, np.random.default_rng(0)
        model = source.load(native=True)
        runner = load_runner(TracedRunner, "native", model, self.properties, None)
        # A pass writes the whole draft to the cache before acceptance.
        cached = random_context(runner, self.context + self.max_new_tokens + 64, rng)
        prompt = rng.integers(0, source.vocab_size, self.context + 1).tolist()
        drafter: Drafter = TraceDrafter(self.trace, source.vocab_size)
        return _Player(runner, LLMEngine(runner, drafter, "dense"), {"long": [prompt]}, cached)


@dataclass(frozen=True, slots=True)
class _Player:
    """An engine, the prompts of its workloads as token ids, and for `long` a cache that is full already."""

    runner: ModelRunner
    engine: LLMEngine
    prompts: Mapping[str, list[list[int]]]
    cached: CachedSequence | None = None
