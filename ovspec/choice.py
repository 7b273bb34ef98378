"""What the schedule `auto` chooses between."""

from __future__ import annotations

from typing import NamedTuple


class Choice(NamedTuple):
    """Draft tokens per step, and the multiple of the sparse budget."""

    tokens: int
    scale: float
