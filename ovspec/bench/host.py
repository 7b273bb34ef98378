"""The timing of `ovspec bench host`: what a step costs outside the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from openvino_genai import GenerationConfig

from ovspec.bench.rounds import check_at_least
from ovspec.drafters import AssistantDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import resolve, updated
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.memory.machine_memory import available_bytes
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model, weight_bytes

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "sampling, top-p 0.9": {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
}
_PROMPT_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class HostRecord:
    """Milliseconds per verification step outside the model calls, drafting and acceptance included."""

    setting: str
    steps: int
    median_ms: float
    p90_ms: float


@dataclass(frozen=True, slots=True)
class HostBench:
    """What to time.

    Attributes:
        vocab_size: of target and draft; the models themselves are tiny and random.
        num_assistant_tokens: draft tokens per step.
        steps: timed steps per setting.
    """

    vocab_size: int
    num_assistant_tokens: int
    steps: int

    def __post_init__(self) -> None:
        check_at_least(2, vocab_size=self.vocab_size, steps=self.steps)
        needed, available = 2 * weight_bytes(self.shape(), "fp32"), available_bytes()
        if needed > available:
            raise ValueError(
                f"--vocab-size {self.vocab_size}: two models of about {needed / 2e9:.1f} GB do not fit into "
                f"the {available / 1e9:.1f} GB that are available; give a smaller one"
            )

    def shape(self) -> ModelShape:
        """A small model with the given vocabulary: the host's work depends on no other size."""
        return replace(
            get_shape("qwen3-0.6b", layers=1, vocab_size=self.vocab_size),
            hidden_size=64,
            intermediate_size=64,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
        )

    def run(self) -> list[HostRecord]:
        """Time every setting."""
        target, draft = (ModelRunner(build_model(self.shape(), "fp32", seed=seed)) for seed in (0, 1))
        drafter = AssistantDrafter(draft, self.vocab_size, prefill_chunk=512)
        engine = LLMEngine(target, drafter)
        records = []
        for setting, options in SETTINGS.items():
            durations = self._durations(engine, options)
            ms = [duration / 1e3 for duration in durations]
            records.append(
                HostRecord(setting, len(ms), median(ms), quantiles(ms, n=10, method="inclusive")[-1])
            )
        return records

    def _durations(self, engine: LLMEngine, options: Mapping[str, Any]) -> list[float]:
        warm_up = 5
        limit = (warm_up + self.steps) * (self.num_assistant_tokens + 1)
        chosen = {"max_new_tokens": limit, "num_assistant_tokens": self.num_assistant_tokens, **options}
        settings = resolve(updated(GenerationConfig(), chosen), (), has_draft=True)
        prompt = [token % self.vocab_size for token in range(_PROMPT_TOKENS)]
        metrics = RawPerfMetrics()
        engine.add_request(Request("host", prompt, settings, metrics=metrics))
        while engine.has_unfinished_requests:
            engine.step()
            if len(metrics.host_durations) >= warm_up + self.steps:
                engine.abort("host")
        return metrics.host_durations[warm_up : warm_up + self.steps]
