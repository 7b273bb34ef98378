"""Committed verification: sparse steps, confirmed by dense passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec_models.folder.sparse_verify import SparseVerify

MAX_INTERVAL = MAX_VERIFY_ROWS - 1


@dataclass(frozen=True, slots=True)
class CommitVerify:
    """Lossless sparse verification.

    Tokens that the sparse verifier accepts are provisional. After every `interval` tokens, and at the end,
    one dense pass rewrites their keys and values, confirms them up to the first that dense decoding would not
    give, and verifies the next draft. Only confirmed tokens are emitted, so the output comes in pieces.

    Args:
        sparse: the sparse verification.
        interval: number of provisional tokens that triggers the dense pass, 1 to 63; with `None` the
            schedule chooses 4, 8, 16 or 32. By what they confirm and cost it may choose dense passes
            instead, unless a constant number of draft tokens and an interval are both given.

    Raises:
        ValueError: a value of another type or out of range.
    """

    sparse: SparseVerify = field(default_factory=SparseVerify)
    interval: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sparse, SparseVerify):
            raise ValueError(f"sparse={self.sparse!r}: expected ovspec.SparseVerify(...)")
        if self.interval is None:
            return
        if isinstance(self.interval, bool) or not isinstance(self.interval, int):
            raise ValueError(
                f"interval={self.interval!r}: expected a number, got {type(self.interval).__name__}"
            )
        if not 1 <= self.interval <= MAX_INTERVAL:
            raise ValueError(f"interval={self.interval}: expected a number of tokens of 1 to {MAX_INTERVAL}")
