"""Counts what passes do for the requests of one call, in the terms of `RawPerfMetrics`."""

from __future__ import annotations

from collections.abc import Iterable

from ovspec.devices.clock import microseconds
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.passes.pass_stats import PassStats


class Meter:
    """Metrics of the requests of one call, which share their passes with those of other calls.

    Args:
        raw: what is counted into.
    """

    def __init__(self, raw: RawPerfMetrics) -> None:
        self.raw = raw
        self._since = microseconds()

    def count_pass(self, stats: PassStats, attended: Iterable[tuple[float, float]]) -> None:
        """A pass that verified drafts of the call.

        Args:
            stats: of the pass; what it read of the weights is counted.
            attended: as in `PassStats`, of the call's sequences.
        """
        raw = self.raw
        for read, context in attended:
            raw.attended_tokens += read
            raw.context_tokens += context
        raw.experts_read += sum(stats.experts_read)
        raw.experts_held += sum(stats.experts_held)
        raw.expert_layers += len(stats.experts_read)
        raw.channels_read += sum(stats.channels_read)
        raw.channels_held += sum(stats.channels_held)

    def count_prompt(self, attended: float, context: float) -> None:
        """A pass that read rows of a prompt of the call; as `PassStats.prompts`."""
        self.raw.prompt_attended_tokens += attended
        self.raw.prompt_context_tokens += context

    def count_first_token(self, arrival: float, read_duration: float) -> None:
        """A prompt was read whole and has its first token; durations and times in microseconds."""
        now, raw = microseconds(), self.raw
        raw.m_times_to_first_token.append(now - arrival)
        raw.prefill_durations.append(read_duration)
        raw.inference_durations.append(read_duration)
        raw.count_tokens(1, 1)
        self._since = now

    def count_tokens(self, emitted: int, running: int) -> None:
        """A step emitted tokens of the call's running sequences."""
        if not emitted:
            # Steps that only added provisional tokens count towards the next step that emits tokens.
            return
        now = microseconds()
        self.raw.m_durations.extend([(now - self._since) * running / emitted] * emitted)
        self.raw.count_tokens(emitted, running)
        self._since = now
