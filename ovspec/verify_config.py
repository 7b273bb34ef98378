"""How the target verifies: densely, or over a selection of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ovspec_models import OvspecConfig


@dataclass(frozen=True, slots=True)
class SparseVerify:
    """Sparse verification: attention over the highest-scoring blocks of the context.

    The budget of arXiv 2512.21911: contexts up to `L0` tokens are read whole, of the rest a share
    `rho`. The first block, the last block of the context and the draft's own blocks are always
    kept. Lossy: the target's distribution is approximated. Prefill stays dense.

    Args:
        L0: tokens up to which verification stays dense.
        rho: share of the tokens beyond `L0` that is read, 0 to 1.
        budget: a fixed budget in tokens instead of `L0` and `rho`.
        anchor_layers: layers that select for themselves, ascending from the first layer without a sliding
            window; the layers after an anchor reuse its list. `None` takes the model's calibrated list or
            the default rule.

    Raises:
        ValueError: a value out of range, or `budget` beside `L0`/`rho`.
    """

    L0: int | None = None
    rho: float | None = None
    budget: int | None = None
    anchor_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("L0", int), ("rho", (int, float)), ("budget", int)):
            if (value := getattr(self, name)) is not None and not isinstance(value, kinds):
                raise ValueError(f"{name}={value!r}: expected a number, got {type(value).__name__}")
        if self.anchor_layers is not None and not all(isinstance(layer, int) for layer in self.anchor_layers):
            raise ValueError(
                f"anchor_layers={self.anchor_layers!r}: expected layer numbers, e.g. (0, 1, 2, 6)"
            )
        if self.budget is not None and (self.L0 is not None or self.rho is not None):
            raise ValueError(
                f"budget={self.budget} contradicts L0={self.L0}, rho={self.rho}: give one or the other"
            )
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"budget={self.budget}: expected a number of tokens of at least 1")
        if self.L0 is not None and self.L0 < 0:
            raise ValueError(f"L0={self.L0}: expected a number of tokens of at least 0")
        if self.rho is not None and not 0.0 <= self.rho <= 1.0:
            raise ValueError(f"rho={self.rho}: expected a share between 0 and 1")
        if self.anchor_layers is not None:
            object.__setattr__(self, "anchor_layers", tuple(self.anchor_layers))

    def budget_tokens(self, context: int) -> int:
        """Tokens of a `context` that a verification pass may read."""
        if self.budget is not None:
            return min(self.budget, context)
        L0 = DEFAULT_L0 if self.L0 is None else self.L0
        rho = DEFAULT_RHO if self.rho is None else self.rho
        return context if context <= L0 else L0 + math.ceil(rho * (context - L0))

    def budget_blocks(self, context: int, block_size: int) -> int:
        """The same in blocks; -1 when it covers the context, which means a dense pass."""
        tokens = self.budget_tokens(context)
        blocks = max(1, math.ceil(tokens / block_size))
        return -1 if tokens >= context else blocks


DEFAULT_L0 = 1024
DEFAULT_RHO = 0.1

Verify = Literal["dense"] | SparseVerify


def calibrated(verify: Verify, config: OvspecConfig | None) -> Verify:
    """Fill what the user left open with what was calibrated for the model, if it was."""
    if not isinstance(verify, SparseVerify) or config is None or config.verify is None:
        return verify
    found = config.verify
    if verify.anchor_layers is None and found.anchor_layers is not None:
        verify = replace(verify, anchor_layers=tuple(found.anchor_layers))
    if verify.budget is None:
        L0 = found.L0 if verify.L0 is None else verify.L0
        rho = found.rho if verify.rho is None else verify.rho
        verify = replace(verify, L0=L0, rho=rho)
    return verify
