"""Settings of sparse verification: their meaning, their checks, and their form in ``ovspec_config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import compress
from typing import Any, Literal, TypeGuard

from ovspec_models.folder.shown import cut, shown
from ovspec_transforms import Selection

Rule = Literal["mass", "paper"]

DEFAULT_L0 = 512
DEFAULT_RHO = 0.1
# The settings of each part that say how much it reads.
AMOUNT_FIELDS = ("L0", "rho", "budget", "coverage")
EXPERT_FIELDS = ("expert_budget",)
CHANNEL_FIELDS = ("ffn_density",)
PER_LAYER_FIELDS = ("expert_budget", "ffn_density")
_NUMBERS: dict[str, tuple[type, ...]] = {
    "L0": (int,),
    "rho": (int, float),
    "budget": (int,),
    "coverage": (int, float),
}
# Settings that older versions wrote, each with the one value that means what this version does.
_REMOVED: dict[str, str | None] = {
    "query": None,
    "summary": None,
    "refresh_interval": None,
    "expert_rule": "mass",
    "expert_share_bound": None,
    "ffn_rule": "top_k",
    "ffn_score": "max",
    "ffn_threshold": None,
}


@dataclass(frozen=True, slots=True)
class SparseVerify:
    """Sparse verification: attention over the highest-scoring blocks, and fewer experts and channels.

    Each part is sparse where one of its settings is given, or was calibrated for the model; attention also
    where nothing is given. Lossy: the target's distribution is approximated. Prompts are read as
    `prefill` says. A setting that is `None` takes the calibrated value, or else the default.

    Contexts up to `L0` tokens are read whole; of the rest a share `rho` is read, in blocks of 32 tokens. By
    default a context of which more than half would be read is read whole: no time is gained there. Each
    layer and KV head reads those that get most of the attention of all rows of the pass, as four mean keys a
    block let it estimate. The first block, the last block of the context and the draft's own blocks are
    always kept. Where that would read as many bytes as dense attention, summaries included, a pass is dense.

    Experts of a mixture are chosen once per pass, for all rows together: every row's first expert, then those
    with the largest routing weight summed over the rows. Channels of dense feed-forward layers are chosen
    once per pass too: those with the largest activated gate over the rows.

    Args:
        L0: tokens up to which verification stays dense. Default 512.
        rho: share of the tokens beyond `L0` that is read, 0 to 1. Default 0.1.
        budget: a fixed budget in tokens instead of `L0` and `rho`.
        coverage: read blocks until they hold this share of the attention as the scores estimate it, above
            0, up to 1 (dense), instead of `L0` and `rho` or `budget`.
        rule: "mass" (default), as above, or "paper": that of arXiv 2512.21911, by which the last accepted
            token's query and the mean key of a block choose for all rows, at anchor layers, and the layers
            after an anchor reuse its list. "mass" needs attention="native"; with "stock", the default is
            "paper".
        sink_blocks: blocks at the start of the context that are always kept, at least 1 (default).
        local_blocks: blocks at its end that are always kept, at least 1 (default).
        anchor_layers: with rule="paper", the layers that select, ascending from the first layer without a
            sliding window. Default: the first three, then every fourth.
        expert_budget: experts of a layer that a pass reads: one number, or one per layer with experts; -1 is
            no limit.
        ffn_density: share of a feed-forward layer's channels that a pass reads, above 0, up to 1: one number,
            or one per layer.

    Raises:
        ValueError: a value of another type or out of range, more than one of `L0`/`rho`, `budget` and
            `coverage`.
    """

    L0: int | None = None
    rho: float | None = None
    budget: int | None = None
    anchor_layers: tuple[int, ...] | None = None
    coverage: float | None = None
    rule: Rule | None = None
    sink_blocks: int | None = None
    local_blocks: int | None = None
    expert_budget: int | tuple[int, ...] | None = None
    ffn_density: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in (*PER_LAYER_FIELDS, "anchor_layers"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in PER_LAYER_FIELDS:
            if getattr(self, name) == ():
                raise ValueError(f"{name}=(): expected one number, or one per layer")
        for name, kinds in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
                whole = "a whole number" if kinds == (int,) else "a number"
                raise ValueError(f"{name}={shown(value)}: expected {whole}, got {type(value).__name__}")
        self._check_budget()
        anchors: Any = self.anchor_layers
        if anchors is not None and not (isinstance(anchors, tuple) and all(map(is_int, anchors))):
            raise ValueError(f"anchor_layers={shown(anchors)}: expected layer numbers, e.g. (0, 1, 2, 6)")
        _ = self.selection  # checks the other settings of attention
        if anchors is not None and self.rule == "mass":
            raise ValueError(
                f"anchor_layers={shown(anchors)}: with rule='mass' every layer selects; leave it out, or use "
                "rule='paper'"
            )
        for number in numbers_of(self.expert_budget):
            if not is_int(number) or number < -1:
                raise ValueError(
                    f"expert_budget={shown(number)}: expected a number of experts, or -1 for no limit"
                )
        for share in numbers_of(self.ffn_density):
            if not _is_number(share) or not 0.0 < share <= 1.0:
                raise ValueError(f"ffn_density={shown(share)}: expected a share above 0, up to 1")

    def _check_budget(self) -> None:
        rules = {"L0": self.L0, "rho": self.rho, "budget": self.budget, "coverage": self.coverage}
        given = [f"{name}={value}" for name, value in rules.items() if value is not None]
        if len(given) > 1 and given[1:] != [f"rho={self.rho}"]:
            raise ValueError(
                f"{given[-1]} contradicts {', '.join(given[:-1])}: give L0=... and rho=..., or "
                "budget=..., or coverage=..."
            )
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"budget={shown(self.budget)}: expected a number of tokens of at least 1")
        if self.L0 is not None and self.L0 < 0:
            raise ValueError(f"L0={shown(self.L0)}: expected a number of tokens of at least 0")
        if self.rho is not None and not 0.0 <= self.rho <= 1.0:
            raise ValueError(f"rho={self.rho}: expected a share between 0 and 1")
        if self.coverage is not None and not 0.0 < self.coverage <= 1.0:
            raise ValueError(f"coverage={self.coverage}: expected a share above 0, up to 1")

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SparseVerify:
        """Read the JSON object that `to_json` wrote; settings of older versions are refused or dropped.

        Raises:
            ValueError: an unknown or removed setting, or a bad value. The message starts with its name.
        """
        known = [entry.name for entry in fields(cls)]
        for name, value in body.items():
            if name in _REMOVED and value not in (None, _REMOVED[name]):
                raise ValueError(
                    f"{name}={shown(value)}: this version of ovspec has no such setting; remove the key, or "
                    "run `ovspec calibrate` again"
                )
            if name not in known and name not in _REMOVED:
                raise ValueError(
                    f"{cut(name)}: unknown key (known: {', '.join(known)}); correct or remove it"
                )
        return cls(**{name: value for name, value in body.items() if name in known})

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object, with null for what is left open."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    @property
    def limits_attention(self) -> bool:
        """Whether attention is sparse."""
        return self.given(ATTENTION_FIELDS) or not (self.limits_experts or self.limits_channels)

    @property
    def limits_experts(self) -> bool:
        """Whether experts are limited in any layer."""
        return any(number != -1 for number in numbers_of(self.expert_budget))

    @property
    def limits_channels(self) -> bool:
        """Whether channels of feed-forward layers are limited."""
        return any(share < 1.0 for share in numbers_of(self.ffn_density))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that are sparse."""
        limited = (self.limits_attention, self.limits_experts, self.limits_channels)
        return tuple(compress(("attention", "experts", "channels"), limited))

    def given(self, names: tuple[str, ...]) -> bool:
        """Whether any of these settings was given."""
        return any(getattr(self, name) is not None for name in names)

    @property
    def selection(self) -> Selection:
        """The rule that the graph selects by, defaults filled in."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(Selection)}
        return Selection(**{name: value for name, value in given.items() if value is not None})

    @property
    def length_rule(self) -> tuple[int, float]:
        """`L0` and `rho`, defaults filled in."""
        return DEFAULT_L0 if self.L0 is None else self.L0, DEFAULT_RHO if self.rho is None else self.rho

    def budget_tokens(self, context: int) -> int:
        """Tokens of a `context` that a verification pass may read; with `coverage` all of them."""
        if self.coverage is not None or not self.limits_attention:
            return context
        if self.budget is not None:
            return min(self.budget, context)
        L0, rho = self.length_rule
        if context <= L0:
            return context
        tokens = L0 + math.ceil(rho * (context - L0))
        return context if 2 * tokens > context and not self.given(("L0", "rho")) else tokens

    def budget_blocks(self, context: int, block_size: int) -> int:
        """The same in blocks; -1 when it covers the context, which means a dense pass."""
        tokens = self.budget_tokens(context)
        blocks = max(1, math.ceil(tokens / block_size))
        return -1 if tokens >= context and self.coverage in (None, 1.0) else blocks


ATTENTION_FIELDS = tuple(
    entry.name for entry in fields(SparseVerify) if entry.name not in EXPERT_FIELDS + CHANNEL_FIELDS
)


def numbers_of(value: float | tuple[float, ...] | None) -> tuple[float, ...]:
    """Return the numbers of a setting that is one number, one per layer, or left open."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
