"""Measurements of one pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassStats:
    """Measurements of one pass.

    Attributes:
        duration: time inside the model, microseconds.
        attended: per sequence, context tokens that verification attention read, mean over layers and KV
            heads, and those that dense attention would have read for the same rows.
        prompts: the same of prompts, summed over their rows.
        experts_read: routed experts that each layer with experts read; empty if the graph does not count
            them.
        experts_held: experts that each of these layers has.
        channels_read: channels of which each gated MLP read the up and down weights; empty likewise.
        channels_held: channels that each of these has.
    """

    duration: float = 0.0
    attended: tuple[tuple[float, float], ...] = ()
    prompts: tuple[tuple[float, float], ...] = ()
    experts_read: tuple[int, ...] = ()
    experts_held: tuple[int, ...] = ()
    channels_read: tuple[int, ...] = ()
    channels_held: tuple[int, ...] = ()

    @property
    def attended_tokens(self) -> float:
        """Context tokens read by verification attention, over all sequences."""
        return sum(attended for attended, _ in self.attended)

    @property
    def context_tokens(self) -> float:
        """Context tokens that dense attention would have read for the same rows."""
        return sum(context for _, context in self.attended)
