"""How the target verifies: densely, or over a selection of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal

from ovspec_models import OvspecConfig
from ovspec_transforms import Selection

Query = Literal["last", "union"]
Summary = Literal["mean", "min_max"]


@dataclass(frozen=True, slots=True)
class SparseVerify:
    """Sparse verification: attention over the highest-scoring blocks of the context.

    The rule of arXiv 2512.21911: contexts up to `L0` tokens are read whole, of the rest a share `rho`, chosen
    with the last accepted token by the mean key of every block of 32 tokens. The first block, the last
    block of the context and the draft's own blocks are always kept. What is `None` takes the value that was
    calibrated for the model, or else the default. Lossy: the target's distribution is approximated. Prefill
    stays dense.

    Args:
        L0: tokens up to which verification stays dense. Default 1024.
        rho: share of the tokens beyond `L0` that is read, 0 to 1. Default 0.1.
        budget: a fixed budget in tokens instead of `L0` and `rho`.
        coverage: read blocks until they hold this share of the attention as the scores estimate it, above
            0, up to 1 (dense), instead of `L0` and `rho` or `budget`.
        query: "last", the last accepted token (default), or "union": a block's score is its largest over all
            draft rows.
        summary: what stands for a block's keys: "mean" (default), or "min_max" of every channel.
        sink_blocks: blocks at the start of the context that are always kept, at least 1 (default).
        local_blocks: blocks at its end that are always kept, at least 1 (default).
        anchor_layers: layers that select for themselves, ascending from the first layer without a sliding
            window; the layers after an anchor reuse its list. Default: the first three, then every fourth.
        refresh_interval: verification steps that a sequence's lists serve, at least 1: every step selects
            (default). A draft of which nothing is accepted, or a pass that reads everything, ends them early.

    Raises:
        ValueError: a value out of range, or more than one of `L0`/`rho`, `budget` and `coverage`.
    """

    L0: int | None = None
    rho: float | None = None
    budget: int | None = None
    anchor_layers: tuple[int, ...] | None = None
    coverage: float | None = None
    query: Query | None = None
    summary: Summary | None = None
    sink_blocks: int | None = None
    local_blocks: int | None = None
    refresh_interval: int | None = None

    def __post_init__(self) -> None:
        for name, kinds in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
                whole = "a whole number" if kinds == (int,) else "a number"
                raise ValueError(f"{name}={value!r}: expected {whole}, got {type(value).__name__}")
        self._check_budget()
        anchors = self.anchor_layers
        if anchors is not None and not all(isinstance(layer, int) for layer in anchors):
            raise ValueError(f"anchor_layers={anchors!r}: expected layer numbers, e.g. (0, 1, 2, 6)")
        if anchors is not None:
            object.__setattr__(self, "anchor_layers", tuple(anchors))
        _ = self.selection  # checks the rest

    def _check_budget(self) -> None:
        rules = {"L0": self.L0, "rho": self.rho, "budget": self.budget, "coverage": self.coverage}
        given = [f"{name}={value}" for name, value in rules.items() if value is not None]
        if len(given) > 1 and given[1:] != [f"rho={self.rho}"]:
            raise ValueError(
                f"{given[-1]} contradicts {', '.join(given[:-1])}: give L0 and rho, or budget, or coverage"
            )
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"budget={self.budget}: expected a number of tokens of at least 1")
        if self.L0 is not None and self.L0 < 0:
            raise ValueError(f"L0={self.L0}: expected a number of tokens of at least 0")
        if self.rho is not None and not 0.0 <= self.rho <= 1.0:
            raise ValueError(f"rho={self.rho}: expected a share between 0 and 1")
        if self.coverage is not None and not 0.0 < self.coverage <= 1.0:
            raise ValueError(f"coverage={self.coverage}: expected a share above 0, up to 1")

    @property
    def selection(self) -> Selection:
        """The rule that the graph selects by, defaults filled in."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(Selection)}
        return Selection(**{name: value for name, value in given.items() if value is not None})

    def budget_tokens(self, context: int) -> int:
        """Tokens of a `context` that a verification pass may read; with `coverage` all, as far as it goes."""
        if self.coverage is not None:
            return context
        if self.budget is not None:
            return min(self.budget, context)
        L0 = DEFAULT_L0 if self.L0 is None else self.L0
        rho = DEFAULT_RHO if self.rho is None else self.rho
        return context if context <= L0 else L0 + math.ceil(rho * (context - L0))

    def budget_blocks(self, context: int, block_size: int) -> int:
        """The same in blocks; -1 when it covers the context, which means a dense pass."""
        tokens = self.budget_tokens(context)
        blocks = max(1, math.ceil(tokens / block_size))
        return -1 if tokens >= context and self.coverage in (None, 1.0) else blocks


_NUMBERS: dict[str, tuple[type, ...]] = {
    "L0": (int,),
    "rho": (int, float),
    "budget": (int,),
    "coverage": (int, float),
}
DEFAULT_L0 = 1024
DEFAULT_RHO = 0.1

Verify = Literal["dense"] | SparseVerify


def calibrated(verify: Verify, config: OvspecConfig | None) -> Verify:
    """Fill what the user left open with what was calibrated for the model, if it was.

    How much is read is one decision: whoever gives a budget or a coverage gets it; `L0` and `rho` complete
    each other.
    """
    if not isinstance(verify, SparseVerify) or config is None or config.verify is None:
        return verify
    found, left_open = config.verify, ["query", "summary", "sink_blocks", "local_blocks", "refresh_interval"]
    if verify.budget is None and verify.coverage is None:
        left_open += ["L0", "rho"]
        if verify.L0 is None and verify.rho is None:
            left_open += ["budget", "coverage"]
    filled = {
        name: getattr(found, name)
        for name in left_open
        if getattr(verify, name) is None and getattr(found, name) is not None
    }
    if verify.anchor_layers is None and found.anchor_layers is not None:
        filled["anchor_layers"] = tuple(found.anchor_layers)
    return replace(verify, **filled)
