"""The rule of block selection, without budgets."""

from __future__ import annotations

from dataclasses import dataclass

RULES = ("mass", "paper")


@dataclass(frozen=True, slots=True)
class Selection:
    """The rule by which a graph selects blocks; budgets and coverage are inputs of every pass.

    Attributes:
        rule: "mass": every layer selects the blocks with the largest share of the attention of all rows of
            the pass, estimated from four mean keys a block; or "paper" (arXiv 2512.21911): anchor layers
            select by the last accepted token's query, row 0 of a pass, and the mean key of a block, and the
            layers behind an anchor use its list.
        sink_blocks: blocks at the start of the context that are always read, at least 1.
        local_blocks: blocks at its end that are always read, at least 1, beside those of the draft.

    Raises:
        ValueError: a value out of range.
    """

    rule: str = "mass"
    sink_blocks: int = 1
    local_blocks: int = 1

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r}: expected {' or '.join(map(repr, RULES))}")
        for name in ("sink_blocks", "local_blocks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
