"""The recording behind `ovspec bench trace`: what a pipeline accepts of its drafts on real prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.pipeline.pipeline import LLMPipeline

Tick = Callable[[str], None]


def record_trace(
    pipeline: LLMPipeline,
    prompts: Sequence[str],
    settings: Mapping[str, Any],
    source: str,
    tick: Tick = lambda step: None,
) -> AcceptanceTrace:
    """Generate for every prompt and note what became of the drafts.

    Args:
        pipeline: drafts and verifies.
        prompts: generated one by one.
        settings: fields of the generation configuration.
        source: says in the trace where it comes from.
        tick: called with what is done next, once per prompt.

    Raises:
        ValueError: nothing was drafted.
    """
    proposed: list[int] = []
    accepted: list[int] = []
    confirmed = [0]
    for number, prompt in enumerate(prompts, 1):
        tick(f"prompt {number} of {len(prompts)}")
        raw = pipeline.generate([prompt], **settings).perf_metrics.raw_metrics
        # A lookup may find nothing; there is then no draft to replay.
        drafts = zip(raw.proposed_lengths, raw.accepted_lengths, strict=True)
        for length, kept in drafts:
            if length:
                proposed.append(length)
                accepted.append(kept)
        _add_commits(raw, confirmed)
    if not proposed:
        raise ValueError("nothing was drafted on these prompts: give a drafter that finds something in them")
    # The run that no correction ended is not known to its end.
    return AcceptanceTrace(source, proposed, accepted, confirmed[:-1])


def _add_commits(raw: RawPerfMetrics, confirmed: list[int]) -> None:
    """Lengthen the last run of confirmed tokens, and begin another behind every correction."""
    for judged, kept in zip(raw.provisional_lengths, raw.confirmed_lengths, strict=True):
        confirmed[-1] += kept
        if kept < judged:
            confirmed.append(0)
