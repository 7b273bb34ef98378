"""Limits of what the rows of a pass may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from ovspec_models import SparseVerify
from ovspec_ops.block_select.reference import MOST_VERIFIED_ROWS

MAX_VERIFY_ROWS = MOST_VERIFIED_ROWS
"""Rows of one sequence that verification attention takes in a pass."""

MAX_NUM_ASSISTANT_TOKENS = MAX_VERIFY_ROWS - 1
"""Draft tokens of one sequence: the pass has a row for the token before them."""


class RowLimits(TypedDict):
    """The fields of `Rows` that limit what a pass reads."""

    budget: int
    limits_experts: bool
    limits_channels: bool


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What the rows of one sequence may read in a pass.

    Attributes:
        blocks: blocks of context that verification attention may read, -1 for all.
        experts: whether the model's expert budget applies.
        channels: whether the model's limits of feed-forward channels apply.
    """

    blocks: int = -1
    experts: bool = False
    channels: bool = False

    @classmethod
    def of(cls, sparse: SparseVerify | None, context: int, block_size: int) -> ReadLimits:
        """What a verification pass may read.

        Args:
            sparse: the settings, `None` for a dense pass.
            context: tokens that its last row sees.
            block_size: tokens per block.
        """
        if sparse is None:
            return DENSE
        blocks = sparse.budget_blocks(context, block_size)
        return cls(blocks, sparse.limits_experts, sparse.limits_channels)

    @property
    def rows(self) -> RowLimits:
        """The same as fields of `Rows`."""
        return {"budget": self.blocks, "limits_experts": self.experts, "limits_channels": self.channels}


DENSE = ReadLimits()
