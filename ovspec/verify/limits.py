"""What the rows of a pass may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

MAX_VERIFY_ROWS = 64
"""Rows of one sequence that verification attention takes in a pass."""


class RowLimits(TypedDict):
    """The fields of `Rows` that limit what a pass reads."""

    budget: int
    limits_experts: bool
    limits_channels: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rows of one sequence may read in a pass.

    Attributes:
        blocks: blocks of context that verification attention may read, -1 for all.
        experts: whether the model's expert budget holds.
        channels: whether the model's limits of feed-forward channels hold.
    """

    blocks: int = -1
    experts: bool = False
    channels: bool = False

    @property
    def rows(self) -> RowLimits:
        """The same as fields of `Rows`."""
        return {
            "budget": self.blocks,
            "limits_experts": self.experts,
            "limits_channels": self.channels,
        }


DENSE = Limits()
