"""Report of a fidelity evaluation, as JSON and as a table."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openvino as ov
from rich.table import Table

from ovspec.cache.cache import cache_layout
from ovspec.eval.in_force import SelectionInForce, prefill_in_force, verify_in_force
from ovspec.eval.machine import processor, versions
from ovspec.eval.results import Reference, Result, Summary, tokens_per_s
from ovspec.eval.tables import COMPACT, table_of
from ovspec.generation.metrics import PerfMetrics
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo

_KEYS_AND_VALUES = ("key_cache", "value_cache")


def precisions(runner: ModelRunner) -> dict[str, str]:
    """Precision of inference and layout of the KV cache, as they are in force."""
    precision: ov.Type = runner.compiled.get_property("INFERENCE_PRECISION_HINT")
    found = {"inference": str(precision.get_type_name())}
    for spec in runner.cache.specs:
        side = spec.name.split(".")[0]
        if side in _KEYS_AND_VALUES:
            found[side] = cache_layout(spec, runner.block_size)
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one run of `ovspec eval fidelity`; settings of the run as in `FidelityEval`.

    Attributes:
        num_assistant_tokens: draft tokens per round at most, 0 without a drafter.
        precisions: in force, from `precisions`.
        selection: how blocks are selected, if they are.
        references: dense outputs, one per prompt.
        reference_metrics: of all dense outputs.
        results: one per setting.
    """

    model: ModelInfo
    drafter: str | None
    draft_model: Path | None
    reference: str
    num_assistant_tokens: int
    max_new_tokens: int
    context: int | None
    low_margin: float
    precisions: dict[str, str]
    references: list[Reference]
    reference_metrics: PerfMetrics
    results: list[Result]
    selection: SelectionInForce | None = None

    def summaries(self) -> list[Summary]:
        """One per setting, over all prompts."""
        return [
            result.summary(self.references, self.reference_metrics, self.low_margin)
            for result in self.results
        ]

    def as_json(self) -> dict[str, Any]:
        """The JSON object; undefined and infinite figures are null."""
        found = {
            "versions": versions(),
            "processor": processor(),
            "model": str(self.model.folder),
            "weight_format": self.model.weight_format(),
            "drafter": self.drafter,
            "draft_model": str(self.draft_model) if self.draft_model else None,
            "num_assistant_tokens": self.num_assistant_tokens,
            "max_new_tokens": self.max_new_tokens,
            "context": self.context,
            "low_margin": self.low_margin,
            "precisions": self.precisions,
            "reference": {
                "verify": self.reference,
                "tokens_per_s": tokens_per_s(self.reference_metrics),
                "mean_acceptance_length": self.reference_metrics.get_mean_acceptance_length(),
                "acceptance_rate": self.reference_metrics.get_acceptance_rate(),
                "prompts": [
                    {
                        "line": reference.line,
                        "num_input_tokens": reference.num_input_tokens,
                        "num_generated_tokens": len(reference.tokens),
                        "tokens_per_s": reference.tokens_per_s,
                    }
                    for reference in self.references
                ],
            },
            "settings": [
                {
                    "name": result.setting.name,
                    "verify": verify_in_force(result.setting.verify, self.selection),
                    "prefill": prefill_in_force(result.setting.prefill),
                    "lossless": not result.metrics.why_lossy and summary.identical == summary.prompts,
                    "why_lossy": result.metrics.why_lossy or None,
                    "identity_breakers": list(result.metrics.identity_breakers),
                    **asdict(summary),
                    "per_prompt": result.prompts_json(self.references, self.low_margin),
                }
                for result, summary in zip(self.results, self.summaries(), strict=True)
            ],
        }
        return {name: finite(value) for name, value in found.items()}

    def lines(self) -> list[str]:
        """What was measured and how, one sentence per line."""
        inputs = [reference.num_input_tokens for reference in self.references]
        drafts = "no drafts"
        if self.drafter:
            drafts = f"drafter: {self.drafter}, at most {self.num_assistant_tokens} tokens a round"
        cut = f", cut to their last {self.context:,}" if self.context else ""
        return [
            f"{self.model.folder} ({self.model.weight_format()}), {drafts}; inference "
            f"{self.precisions['inference']}, keys {self.precisions['key_cache']}, "
            f"values {self.precisions['value_cache']}",
            f"prompts: {len(inputs)}, of {min(inputs):,} to {max(inputs):,} tokens{cut}; at most "
            f"{self.max_new_tokens} new tokens each, greedy; reference: {self.reference} decoding",
        ]

    def tables(self) -> list[Table]:
        """Tables of the generated tokens and of the teacher-forced decisions."""
        summaries = self.summaries()
        return [self._free_running(summaries), self._teacher_forced(summaries)]

    def _free_running(self, summaries: list[Summary]) -> Table:
        dense = self.reference_metrics
        length, density = dense.get_mean_acceptance_length(), dense.get_attention_density()
        speed = _number(tokens_per_s(dense), ".1f")
        # The header of each column, its cell of the reference, and those of the settings.
        columns = [
            ("", self.reference, [result.setting.name for result in self.results]),
            ("identical\noutputs", "", [f"{s.identical} of {s.prompts}" for s in summaries]),
            ("diverges\nat token", "", [_number(s.median_first_divergence, "g") for s in summaries]),
            ("matched\nprefix", "", [f"{s.matched_prefix:.2f}" for s in summaries]),
            ("accepted\nlength", f"{length:.2f}", [f"{s.mean_acceptance_length:.2f}" for s in summaries]),
            ("density", f"{density:.2f}", [f"{s.attention_density:.2f}" for s in summaries]),
        ]
        if any(s.prefill_density < 1.0 for s in summaries):
            columns.append(("prompt\ndensity", "", [f"{s.prefill_density:.2f}" for s in summaries]))
        if any(s.experts_read for s in summaries):
            columns.append(("experts\nread", "", [f"{s.experts_read:.1f}" for s in summaries]))
        if any(s.ffn_density < 1.0 for s in summaries):
            columns.append(("ffn\ndensity", "", [f"{s.ffn_density:.2f}" for s in summaries]))
        columns.append(("tokens/s", speed, [_number(s.tokens_per_s, ".1f") for s in summaries]))
        columns.append(("speed", "1.00", [_number(s.speedup, ".2f") for s in summaries]))
        rows = zip(*([reference, *cells] for _, reference, cells in columns), strict=True)
        return table_of("free running", [header for header, _, _ in columns], rows, **COMPACT)

    def _teacher_forced(self, summaries: list[Summary]) -> Table:
        rows = []
        for result, summary in zip(self.results, summaries, strict=True):
            kl = asdict(summary.kl) if summary.kl else {}
            figures = [_number(kl.get(name), ".2g") for name in ("mean", "median", "p99", "max")]
            agreement = _number(summary.top1_agreement, ".4f")
            rows.append([result.setting.name, agreement, str(summary.disagreements), *figures])
        title = f"teacher-forced: {summaries[0].positions:,} decisions each, KL in nats"
        return table_of(title, ("", "top-1", "differ", "KL mean", "median", "p99", "max"), rows, **COMPACT)

    def notes(self) -> list[str]:
        """Differences of low margin, and which settings are lossy; one sentence per line."""
        lines = []
        for result, summary in zip(self.results, self.summaries(), strict=True):
            diverged = summary.prompts - summary.identical
            lines.append(
                f"{result.setting.name}: {_verdict(summary, result.metrics)}; at low margin: "
                f"{summary.diverged_at_low_margin} of {diverged} divergences, "
                f"{summary.disagreements_at_low_margin} of {summary.disagreements} differing decisions"
            )
        if self.results[0].setting.commits:
            lines.append(
                "commit: these decisions are the sparse passes', before a dense one confirms or corrects them"
            )
        if any(result.setting.commits_channels for result in self.results):
            lines.append("reference: with --ffn native, the operation that limits of channels choose")
        summary = self.summaries()[0]
        lines.append(
            f"low margin: dense decoding's first choice is less than {self.low_margin:g} nats above its "
            f"second, as in {summary.low_margin_positions:,} of its {summary.positions:,} decisions"
        )
        return lines


def _verdict(summary: Summary, metrics: PerfMetrics) -> str:
    """A sentence about a measured difference and its cause, if that is known."""
    if metrics.why_lossy:
        return f"LOSSY, {metrics.why_lossy}"
    breakers = "".join(f"; {reason}" for reason in metrics.identity_breakers)
    if summary.identical == summary.prompts:
        return f"lossless, {summary.identical} of {summary.prompts} outputs identical{breakers}"
    return f"NOT LOSSLESS, {summary.identical} of {summary.prompts} outputs identical{breakers}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def finite(value: Any) -> Any:
    """JSON has no infinity: a margin without a second choice, or the KL of a token that is ruled out."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
