"""Sparse prompts as a setting."""

from __future__ import annotations

from dataclasses import dataclass

from ovspec_models import SparseVerify

DEFAULT_L0 = 1024
PROMPT_PIECE = 128
"""Rows of a prompt that share their block lists; a piece begins at a multiple of it."""


@dataclass(frozen=True, slots=True)
class SparsePrefill:
    """Sparse attention while a prompt is read. Lossy: keys and values of the prompt are approximated.

    Every 128 tokens of a prompt choose the blocks of 32 tokens that they read of what is before them, for
    each KV head, as sparse verification does, by the attention of all their queries. The first block, the
    last before them and their own are always read, and so is all of the context up to `L0` tokens.

    Args:
        L0: tokens up to which a prompt is read densely. Default 1024.
        rho: share of the tokens beyond `L0` that is read, 0 to 1. Default 0.1.
        coverage: read blocks until they hold this share of the attention as the scores estimate it, above
            0, up to 1 (dense), instead of `L0` and `rho`.

    Raises:
        ValueError: a value of another type or out of range, or `coverage` beside one of the others.
    """

    L0: int | None = None
    rho: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        rules = {"L0": self.L0, "rho": self.rho}
        given = [f"{name}={value}" for name, value in rules.items() if value is not None]
        if self.coverage is not None and given:
            raise ValueError(
                f"prefill: coverage={self.coverage} contradicts {', '.join(given)}: give L0=... and rho=..., "
                "or coverage=..."
            )
        try:
            _ = self.amount
        except ValueError as error:
            raise ValueError(f"prefill: {error}") from None

    @property
    def amount(self) -> SparseVerify:
        """The same as settings of sparse verification, defaults filled in."""
        given = SparseVerify(L0=self.L0, rho=self.rho, coverage=self.coverage)
        if self.coverage is not None:
            return given
        return SparseVerify(L0=DEFAULT_L0 if self.L0 is None else self.L0, rho=given.length_rule[1])

    @property
    def share(self) -> float:
        """Share of the estimated attention mass to keep; 1: the budget alone decides."""
        return 1.0 if self.coverage is None else self.coverage

    def budget_blocks(self, context: int, block_size: int) -> int:
        """Blocks that a piece may read whose last row sees `context` tokens; -1 for a dense one."""
        return self.amount.budget_blocks(context, block_size)

    def reads_all(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens is read densely."""
        return self.budget_blocks(max(1, tokens), 1) < 0

    @property
    def identity(self) -> bytes:
        """What keys and values depend on beside their tokens."""
        amount = self.amount
        return f"{PROMPT_PIECE} {amount.L0} {amount.rho} {amount.coverage}".encode()


def parse_prefill(prefill: object) -> SparsePrefill | None:
    """Check a user's `prefill` argument: "dense" is `None`, "sparse" is `SparsePrefill()`.

    Raises:
        ValueError: it is neither.
    """
    if prefill == "dense":
        return None
    if prefill == "sparse":
        return SparsePrefill()
    if isinstance(prefill, SparsePrefill):
        return prefill
    raise ValueError(f"prefill={prefill!r}: expected 'dense', 'sparse' or ovspec.SparsePrefill(...)")
