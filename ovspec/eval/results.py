"""Results of one setting by prompt, and their summary."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ovspec.eval.divergence import Decision
from ovspec.eval.setting import Setting
from ovspec.generation.metrics import PerfMetrics


@dataclass(frozen=True, slots=True)
class Reference:
    """Output of dense decoding for one prompt.

    Attributes:
        num_input_tokens: tokens of the prompt as the model got it.
        tokens: the output.
        tokens_per_s: after the first token; `None` where there was one only.
    """

    line: int
    num_input_tokens: int
    tokens: list[int]
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt under one setting.

    Attributes:
        first_divergence: index of the first output token that is not the reference's, `None` if all are.
        divergence_margin: dense margin at that token, nats.
        tokens_per_s: after the first token; `None` where there was one only.
        speedup: `tokens_per_s` by the reference's.
        decisions: teacher-forced, of the reference's tokens after the first.
    """

    num_tokens: int
    first_divergence: int | None
    divergence_margin: float | None
    tokens_per_s: float | None
    speedup: float | None
    decisions: list[Decision]


@dataclass(frozen=True, slots=True)
class KL:
    """KL(dense || setting) over the positions, nats."""

    mean: float
    median: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> KL:
        """Mean, percentiles and maximum of the values."""
        p50, p99 = np.percentile(values, (50, 99), method="higher")
        return cls(float(np.mean(values)), float(p50), float(p99), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """One setting over all prompts. Figures without any position or token are `None`.

    Attributes:
        identical: number of outputs that equal the reference's.
        diverged_at_low_margin: of the others, those whose first divergence has a low dense margin.
        median_first_divergence: over the outputs that diverge.
        matched_prefix: mean share of the reference's tokens before the first divergence.
        positions: teacher-forced decisions.
        top1_agreement: share of them that choose dense's token.
        disagreements: number of decisions that choose another token.
        disagreements_at_low_margin: of these, those with a low dense margin.
        low_margin_positions: decisions with a low dense margin, agreeing or not.
        kl: over the decisions.
        tokens_per_s: after the first tokens, over all prompts.
        speedup: `tokens_per_s` by the reference's.
        attention_density: share of the context that verification read.
        prefill_density: share of the context that prompts read.
        expert_density: share of the experts that it read; 1 without a budget.
        experts_read: mean number of experts of a layer that a pass read; 0 without a budget.
        ffn_density: share of the feed-forward channels that it read; 1 without a limit.
    """

    prompts: int
    identical: int
    diverged_at_low_margin: int
    median_first_divergence: float | None
    matched_prefix: float
    positions: int
    top1_agreement: float | None
    disagreements: int
    disagreements_at_low_margin: int
    low_margin_positions: int
    kl: KL | None
    tokens_per_s: float | None
    speedup: float | None
    mean_acceptance_length: float
    acceptance_rate: float
    attention_density: float
    prefill_density: float
    expert_density: float
    experts_read: float
    ffn_density: float


@dataclass(frozen=True, slots=True)
class Result:
    """Everything measured of one setting; `outcomes` is in the order of the prompts."""

    setting: Setting
    outcomes: list[Outcome]
    metrics: PerfMetrics

    def summary(self, references: list[Reference], reference: PerfMetrics, low_margin: float) -> Summary:
        """Over all prompts; `reference`: metrics of all references; a margin below `low_margin` is low."""
        speed, reference_speed = tokens_per_s(self.metrics), tokens_per_s(reference)
        diverged = [outcome for outcome in self.outcomes if outcome.first_divergence is not None]
        decisions = [decision for outcome in self.outcomes for decision in outcome.decisions]
        disagreements = [decision for decision in decisions if not decision.agrees]
        matched = [_matched(*pair) for pair in zip(self.outcomes, references, strict=True)]
        return Summary(
            prompts=len(self.outcomes),
            identical=len(self.outcomes) - len(diverged),
            diverged_at_low_margin=sum(_below(o.divergence_margin, low_margin) for o in diverged),
            median_first_divergence=(
                float(median(o.first_divergence for o in diverged if o.first_divergence is not None))
                if diverged
                else None
            ),
            matched_prefix=float(np.mean(matched)),
            positions=len(decisions),
            top1_agreement=1.0 - len(disagreements) / len(decisions) if decisions else None,
            disagreements=len(disagreements),
            disagreements_at_low_margin=sum(_below(d.margin, low_margin) for d in disagreements),
            low_margin_positions=sum(_below(d.margin, low_margin) for d in decisions),
            kl=KL.of([decision.kl for decision in decisions]) if decisions else None,
            tokens_per_s=speed,
            speedup=speed / reference_speed if speed and reference_speed else None,
            mean_acceptance_length=self.metrics.get_mean_acceptance_length(),
            acceptance_rate=self.metrics.get_acceptance_rate(),
            attention_density=self.metrics.get_attention_density(),
            prefill_density=self.metrics.get_prefill_density(),
            expert_density=self.metrics.get_expert_density(),
            experts_read=self.metrics.get_experts_read(),
            ffn_density=self.metrics.get_ffn_density(),
        )

    def prompts_json(self, references: list[Reference], low_margin: float) -> list[dict[str, Any]]:
        """The part of the JSON report about each prompt, with the KL of every position."""
        return [
            {
                "line": reference.line,
                "num_generated_tokens": outcome.num_tokens,
                "identical": outcome.first_divergence is None,
                "first_divergence": outcome.first_divergence,
                "divergence_margin": outcome.divergence_margin,
                "matched_prefix": _matched(outcome, reference),
                "disagreements": [i for i, d in enumerate(outcome.decisions, 1) if not d.agrees],
                "low_margin_positions": [
                    i for i, d in enumerate(outcome.decisions, 1) if d.margin < low_margin
                ],
                "kl": [decision.kl for decision in outcome.decisions],
                "tokens_per_s": outcome.tokens_per_s,
                "speedup": outcome.speedup,
            }
            for outcome, reference in zip(self.outcomes, references, strict=True)
        ]


def tokens_per_s(metrics: PerfMetrics) -> float | None:
    """Tokens per second after the first token; `None` where only one was generated."""
    throughput = metrics.get_throughput().mean
    return throughput if throughput > 0 else None


def _matched(outcome: Outcome, reference: Reference) -> float:
    return 1.0 if outcome.first_divergence is None else outcome.first_divergence / len(reference.tokens)


def _below(margin: float | None, low_margin: float) -> bool:
    return margin is not None and margin < low_margin
