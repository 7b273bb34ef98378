"""`ovspec bench decode`: tokens per second with a long context, by mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from time import perf_counter

import numpy as np
import openvino as ov
from openvino_genai import GenerationConfig

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.backends import load_runner, random_context
from ovspec.bench.memory import check_models_fit
from ovspec.bench.rounds import check_at_least, check_names, check_positions, rotated
from ovspec.bench.source import ModelSource
from ovspec.bench.traced_runner import TraceDrafter, TracedRunner
from ovspec.cache.cache import CachedSequence
from ovspec.drafters import LayerSkipDrafter, SparseSelfDrafter
from ovspec.drafters.drafter import Drafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.eval.in_force import SelectionInForce
from ovspec.generation.generation_config import resolve, updated
from ovspec.generation.metrics import PerfMetrics
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.row_limits import DENSE
from ovspec.modes.verify_mode import VerifyMode
from ovspec_models.folder.sparse_verify import SparseVerify

Tick = Callable[[str], None]
# Compiled model and verification of each mode. The stock modes use OpenVINO's own attention at its defaults.
MODES = {
    "stock_plain": "stock",
    "stock_speculative": "stock",
    "plain": "native",
    "dense": "native",
    "sparse": "native",
    "commit": "native",
    "sparse_self": "native",
    "layer_skip": "skipping",
}
PLAIN = ("stock_plain", "plain")


@dataclass(frozen=True, slots=True)
class DecodeRecord:
    """One generation; durations are means in milliseconds, `None` where there was none.

    Attributes:
        tokens_per_pass: tokens that a verification yielded.
        density: share of the context's cache that verification read, commits included.
        experts_read: mean number of experts of a layer that a verification read; 0 without a budget.
        selecting_layers: those that selected what was read; `None` where none did.
    """

    tokens_per_second: float
    tokens_per_pass: float
    verify_ms: float | None
    draft_ms: float | None
    commit_ms: float | None
    commits: int
    density: float
    experts_read: float
    selecting_layers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """What to time.

    Attributes:
        context: tokens in the cache before the first new one.
        trace: decides how many draft tokens are accepted in every mode that drafts.
        sparse: what sparse passes may read.
        interval: commit interval. A trace tells commits from dense steps by it, so none is chosen.
        draft_budget: tokens of the context that a drafting pass of `sparse_self` may read.
        max_new_tokens: tokens per generation.
        repeat: timed generations per mode, after one untimed warm-up.
        properties: OpenVINO properties for every mode; without one, stock runs at the plugin's defaults.
    """

    source: ModelSource
    context: int
    trace: AcceptanceTrace
    sparse: SparseVerify
    interval: int
    draft_budget: int
    max_new_tokens: int
    repeat: int
    modes: tuple[str, ...]
    properties: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_at_least(1, context=self.context, draft_budget=self.draft_budget, repeat=self.repeat)
        check_at_least(2, max_new_tokens=self.max_new_tokens)
        check_positions(self.source, self.context, self.max_new_tokens)
        check_names("--mode", self.modes, MODES)
        if "stock" in self._models():
            self.source.check_stock(f"--mode {','.join(self.modes)}")

    @property
    def num_steps(self) -> int:
        """Number of times that `run` calls its `tick`."""
        return 1 + len(self._models()) + len(self.modes) * (1 + self.repeat)

    def _models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(MODES[mode] for mode in self.modes))

    def run(self, tick: Tick = lambda step: None) -> dict[str, list[DecodeRecord]]:
        """The timed generations of each mode; the modes take turns, one generation each."""
        check_models_fit(self.source, self._models(), self.context + self.max_new_tokens)
        tick("loading the model")
        model = self.source.load(native=any(name != "stock" for name in self._models()))
        players = {name: self._player(name, model, tick) for name in self._models()}
        if "commit" in self.modes and players["native"].runner.limits(self.sparse, self.context) == DENSE:
            raise ValueError(
                f"--budget {self.sparse.budget}: with the blocks' summaries no less is read than the context "
                f"of {self.context} tokens, which leaves nothing to commit; give a smaller budget or a "
                "longer --context"
            )
        records: dict[str, list[DecodeRecord]] = {mode: [] for mode in self.modes}
        for turn in range(1 + self.repeat):
            for mode in rotated(self.modes, turn):
                tick(f"round {turn} of {self.repeat}: {mode}")
                record = self._generate(mode, players[MODES[mode]])
                if turn:
                    records[mode].append(record)
        return records

    def _player(self, name: str, model: ov.Model, tick: Tick) -> _Player:
        tick(f"compiling {name}")
        # The clone shares the weights.
        runner = load_runner(TracedRunner, name, model.clone(), self.properties, self.sparse)
        rng = np.random.default_rng(0)
        # A pass writes the whole draft to the cache before acceptance.
        cached = random_context(runner, self.context + self.max_new_tokens + 64, rng)
        return _Player(runner, cached, rng.integers(0, self.source.vocab_size, self.context + 1).tolist())

    def _generate(self, mode: str, player: _Player) -> DecodeRecord:
        runner = player.runner
        drafter: Drafter | None = None
        if mode == "sparse_self":
            drafter = SparseSelfDrafter(runner, replace(self.sparse, budget=self.draft_budget))
        elif mode == "layer_skip":
            drafter = LayerSkipDrafter(runner)
        elif mode not in PLAIN:
            drafter = TraceDrafter(self.trace, self.source.vocab_size)
        runner.replay(self.trace if drafter else None, commits=mode == "commit")
        engine = LLMEngine(runner, drafter, self._verify(mode))
        player.cached.length = player.cached.summarised = self.context
        request = self._request(player, drafter)
        metrics = PerfMetrics(raw_metrics=request.metrics)
        started = perf_counter()
        tokens = engine.generate([request])[request.request_id]
        seconds = perf_counter() - started
        selection = SelectionInForce.of(runner) if metrics.get_attention_density() < 1.0 else None
        return DecodeRecord(
            tokens_per_second=len(tokens) / seconds,
            tokens_per_pass=metrics.get_mean_acceptance_length(),
            verify_ms=_mean_ms(metrics.raw_metrics.verify_durations),
            draft_ms=_mean_ms(metrics.raw_metrics.draft_durations),
            commit_ms=_mean_ms(metrics.raw_metrics.commit_durations),
            commits=len(metrics.raw_metrics.commit_durations),
            density=metrics.get_attention_density(),
            experts_read=metrics.get_experts_read(),
            selecting_layers=selection.layers if selection else None,
        )

    def _verify(self, mode: str) -> VerifyMode:
        if mode == "commit":
            return CommitVerify(self.sparse, self.interval)
        return self.sparse if mode == "sparse" else "dense"

    def _request(self, player: _Player, drafter: Drafter | None) -> Request:
        chosen = {"max_new_tokens": self.max_new_tokens, "ignore_eos": True}
        if drafter is not None:
            chosen["num_assistant_tokens"] = max(self.trace.nodes or self.trace.proposed)
            if self.trace.nodes and not drafter.why_no_trees:
                chosen |= {"tree_depth": max(self.trace.proposed), "branching_factor": 2}
        settings = resolve(updated(GenerationConfig(), chosen), (), has_draft=drafter is not None)
        return Request("decode", player.prompt, settings, cached=(player.cached, CachedSequence()))


@dataclass(frozen=True, slots=True)
class _Player:
    """A compiled model, a sequence with a full cache, and token ids for its context."""

    runner: TracedRunner
    cached: CachedSequence
    prompt: list[int]


def _mean_ms(durations: list[float]) -> float | None:
    return mean(durations) / 1e3 if durations else None
