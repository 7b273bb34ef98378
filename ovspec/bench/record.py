"""`ovspec bench trace`: record how many draft tokens a pipeline accepts on real prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.pipeline.pipeline import LLMPipeline

Tick = Callable[[str], None]


def record_trace(
    pipeline: LLMPipeline,
    prompts: Sequence[str],
    settings: Mapping[str, Any],
    source: str,
    tick: Tick = lambda step: None,
) -> AcceptanceTrace:
    """Generate for every prompt alone and record the lengths of proposed and accepted drafts.

    Args:
        settings: fields of the generation configuration.
        source: origin of the trace, stored in it.
        tick: called with a description before each prompt.
    """
    proposed: list[int] = []
    accepted: list[int] = []
    nodes: list[int] = []
    confirmed = [0]
    for number, prompt in enumerate(prompts, 1):
        tick(f"prompt {number} of {len(prompts)}")
        raw = pipeline.generate([prompt], **settings).perf_metrics.raw_metrics
        # A lookup that found nothing leaves no draft to replay.
        drafts = zip(raw.proposed_lengths, raw.accepted_lengths, raw.drafted_nodes, strict=True)
        for length, kept, tokens in drafts:
            if length:
                proposed.append(length)
                accepted.append(kept)
                nodes.append(tokens)
        _add_commits(raw, confirmed)
    if not proposed:
        raise ValueError("nothing was drafted on these prompts: give a drafter that finds something in them")
    # The last run ended without a correction, so its length is unknown.
    return AcceptanceTrace(source, proposed, accepted, confirmed[:-1], nodes if nodes != proposed else [])


def _add_commits(raw: RawPerfMetrics, confirmed: list[int]) -> None:
    """Extend the last run of confirmed tokens; start a new run after every correction."""
    for judged, kept in zip(raw.provisional_lengths, raw.confirmed_lengths, strict=True):
        confirmed[-1] += kept
        if kept < judged:
            confirmed.append(0)
