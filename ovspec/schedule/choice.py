"""What the schedule `auto` chooses between."""

from __future__ import annotations

from typing import NamedTuple

from ovspec.schedule.cost_model import CostCell
from ovspec.schedule.schedule import Plan, StepState

# Draft lengths to choose from, within the bound.
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 63)
# The draft length to start from.
DEFAULT_DRAFT = 4


class Choice(NamedTuple):
    """Draft tokens per step, and the multiple of the sparse budget."""

    tokens: int
    scale: float

    @classmethod
    def of(cls, plan: Plan) -> Choice:
        """What a plan asks for."""
        return cls(plan.num_assistant_tokens, 1.0 if plan.budget_scale is None else plan.budget_scale)


def candidates(cell: CostCell, state: StepState, limit: int) -> list[Choice]:
    """What may be chosen: drafts up to `limit`, no longer than twice what was measured in the cell."""
    found = []
    for scale in state.budget_scales:
        measured = max(cell.verify_at(scale).sizes, default=0) // len(state.contexts)
        longest = min(limit, max(DEFAULT_DRAFT, 2 * measured))
        found += [Choice(tokens, scale) for tokens in _LENGTHS if tokens <= longest]
    return found
