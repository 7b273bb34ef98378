"""`ovspec bench schedule`: policies of drafting, replayed on a trace at measured costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.table import Table

from ovspec.bench.offers import LONGEST, OfferTrace
from ovspec.bench.replay import CostTable, Policy, replay
from ovspec.bench.rounds import check_once
from ovspec.drafters.auto import AutoDrafter
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of
from ovspec.generation.sequence import Sequence as TokenSequence
from ovspec.pipeline.models.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec_models import ModelInfo

Tick = Callable[[str], None]
PLAIN = "plain"
POLICIES = (
    PLAIN,
    *(f"{drafter}:{tokens}" for drafter in ("lookup", "suffix") for tokens in (2, 4, 8)),
    "auto",
)
ROWS = (1, 2, 3, 5, 9, 17, 33, 1 + LONGEST)
_REPEAT = 5
_DRAFT = 4


class _Random(Drafter):
    """Proposes random tokens, which the target accepts hardly ever."""

    name = "random"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._rng = vocab_size, np.random.default_rng(0)

    def _draft(self, sequences: Sequence[TokenSequence], counts: Sequence[int]) -> dict[int, Proposal]:
        return {index: Proposal(self.random(count)) for index, count in enumerate(counts)}

    def random(self, count: int) -> list[int]:
        """So many tokens."""
        return [int(token) for token in self._rng.integers(0, self._vocab_size, count)]


class _Watch(Schedule):
    """Plans given numbers of tokens in turn, and notes what every step took.

    Attributes:
        found: by tokens drafted, microseconds of the steps and of their drafts.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers, self._steps = numbers, 0
        self.found: dict[int, list[tuple[float, float]]] = {}

    def plan(self, state: StepState) -> Plan:
        """The next number."""
        self._steps += 1
        return Plan(self._numbers[self._steps % len(self._numbers)])

    def observe(self, outcome: StepOutcome) -> None:
        """Note what it took."""
        taken = outcome.duration, outcome.draft_duration
        self.found.setdefault(outcome.sequences[0].proposed, []).append(taken)

    def medians(self, which: int) -> dict[int, float]:
        """Milliseconds by tokens drafted, the first step of a number left out: it compiles kernels."""
        return {n: median(t[which] for t in taken[1:] or taken) / 1000 for n, taken in self.found.items()}


@dataclass(frozen=True, slots=True)
class ScheduleBench:
    """What to replay.

    Attributes:
        draft: folder of the draft model of a trace that has its offers.
        arguments: of `LLMPipeline`.
    """

    model: Path
    draft: Path | None
    trace: OfferTrace
    policies: tuple[Policy, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_once("--policy", [policy.name for policy in self.policies])
        for policy in self.policies:
            policy.check(self.trace)

    @property
    def num_steps(self) -> int:
        """How often `run` calls its `tick`."""
        return 1 + len(self._contexts()) + len(self.policies)

    def run(self, tick: Tick = lambda step: None) -> ScheduleReport:
        """Measure what passes cost, and replay every policy."""
        tick("loading the model")
        costs = self._costs(tick)
        speeds = {}
        for policy in self.policies:
            tick(policy.name)
            speeds[policy.name] = replay(self.trace, costs, policy)
        return ScheduleReport(self.trace.source, costs, speeds)

    def _contexts(self) -> list[int]:
        """From the shortest prompt of the trace to its longest one, doubled."""
        lengths = [answer.prompt_tokens for answer in self.trace.answers]
        found = [min(lengths)]
        while found[-1] < max(lengths):
            found.append(min(2 * found[-1], max(lengths)))
        return found

    def _costs(self, tick: Tick) -> CostTable:
        draft = draft_model(self.draft) if self.draft else None
        pipeline = LLMPipeline(self.model, draft_model=draft, drafter="auto", **self.arguments)
        drafter, table = _Random(ModelInfo.read(self.model).vocab_size), list[list[float]]()
        engine = LLMEngine(pipeline.runner, drafter, "dense", max_model_len=pipeline.max_model_len)
        numbers = [rows - 1 for rows in ROWS]
        for context in self._contexts():
            tick(f"passes of {ROWS[0]} to {ROWS[-1]} rows behind {context} tokens")
            found = _watched(engine, pipeline, drafter.random(context), numbers).medians(0)
            if missing := sorted(set(numbers) - found.keys()):
                raise ValueError(
                    f"drafts of {missing} tokens have no room behind {context} tokens, the length of a "
                    "prompt of the trace: record it with shorter prompts, or allow a larger cache"
                )
            table.append([found[number] for number in numbers])
        auto, draft_ms = pipeline.engine.engine.drafter, 0.0
        assert isinstance(auto, AutoDrafter)
        if auto.has_model:
            engine = LLMEngine(pipeline.runner, auto.drafters[-1], "dense")
            found = _watched(engine, pipeline, drafter.random(self._contexts()[0]), [_DRAFT]).medians(1)
            draft_ms = found[_DRAFT] / _DRAFT
        return CostTable(self._contexts(), list(ROWS), table, draft_ms)


def _watched(engine: LLMEngine, pipeline: LLMPipeline, prompt: list[int], numbers: Sequence[int]) -> _Watch:
    """What steps took that drafted these numbers of tokens in turn."""
    # A draft that the end of the answer cuts short is another number.
    tokens = (1 + _REPEAT) * len(numbers) + 1
    settings = pipeline.settings(do_sample=False, ignore_eos=True, max_new_tokens=tokens + max(numbers))
    watch = _Watch(numbers)
    engine.generate([Request("costs", prompt, settings, schedule=watch)])
    return watch


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Tokens per second of every policy, by category."""

    source: str
    costs: CostTable
    speeds: Mapping[str, Mapping[str, float]]

    @property
    def categories(self) -> list[str]:
        """The categories of the trace."""
        return list(next(iter(self.speeds.values())))

    def best(self, category: str) -> float | None:
        """Tokens per second of the best fixed setting, in hindsight; `None` where none was replayed."""
        fixed = [name for name in self.speeds if name == PLAIN or Policy(name).tokens is not None]
        return max((self.speeds[name][category] for name in fixed), default=None)

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, trace, costs, tokens_per_s."""
        return {
            "machine": machine(native=True),
            "versions": versions(),
            "trace": self.source,
            "costs": {
                "contexts": self.costs.contexts,
                "rows": self.costs.rows,
                "ms": self.costs.milliseconds,
                "draft_ms": self.costs.draft_ms,
            },
            "tokens_per_s": {name: dict(found) for name, found in self.speeds.items()},
        }

    def lines(self) -> list[str]:
        """What was measured."""
        costs, lines = self.costs, [self.source]
        for context, found in zip(costs.contexts, costs.milliseconds, strict=True):
            passes = ", ".join(f"{rows}: {cost:.1f}" for rows, cost in zip(costs.rows, found, strict=True))
            lines.append(f"milliseconds by rows behind {context} tokens: {passes}")
        if costs.draft_ms:
            lines.append(f"milliseconds of a drafted token: {costs.draft_ms:.2f}")
        return lines

    def table(self) -> Table:
        """Tokens per second by category, and their mean share of the best fixed setting."""
        rows = []
        for name, found in self.speeds.items():
            cells = [f"{found[category]:.1f}" for category in self.categories]
            bests = ((category, self.best(category)) for category in self.categories)
            shares = [found[category] / best for category, best in bests if best is not None]
            share = (f"{min(shares):.2f}", f"{fmean(shares):.2f}") if shares else ("-", "-")
            rows.append([name, *cells, *share])
        names = ("policy", *self.categories, "of the best fixed:\nleast", "\nmean")
        return table_of("tokens/s, replayed", names, rows)

    def notes(self) -> list[str]:
        """Nothing to add."""
        return []
