"""The rule of block selection, without budgets."""

from __future__ import annotations

from dataclasses import dataclass

QUERIES = ("last", "union")
SUMMARIES = ("mean", "min_max")


@dataclass(frozen=True, slots=True)
class Selection:
    """The rule by which a graph selects blocks; budgets and coverage are inputs of every pass.

    Attributes:
        query: "last", the last accepted token, which is row 0 of a pass (arXiv 2512.21911), or "union": a
            block scores the maximum over all draft rows.
        summary: summary of a block's keys: their "mean", or "min_max" of every channel (2406.10774).
        sink_blocks: blocks at the start of the context that are always read, at least 1.
        local_blocks: blocks at its end that are always read, at least 1, beside those of the draft.
        refresh_interval: verification steps that use one list, at least 1 (every step selects).

    Raises:
        ValueError: a value out of range.
    """

    query: str = "last"
    summary: str = "mean"
    sink_blocks: int = 1
    local_blocks: int = 1
    refresh_interval: int = 1

    def __post_init__(self) -> None:
        for name, values in (("query", QUERIES), ("summary", SUMMARIES)):
            if (value := getattr(self, name)) not in values:
                expected = " or ".join(repr(known) for known in values)
                raise ValueError(f"{name}={value!r}: expected {expected}")
        for name in ("sink_blocks", "local_blocks", "refresh_interval"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")

    @property
    def remembers(self) -> bool:
        """Whether lists are reused by later passes."""
        return self.refresh_interval > 1

    def summary_size(self, head_size: int) -> int:
        """Number of values of a block's summary, per KV head."""
        return head_size * (2 if self.summary == "min_max" else 1)
