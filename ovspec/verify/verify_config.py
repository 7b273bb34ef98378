"""How the target verifies: densely, or over a part of its context and of its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from ovspec.verify.limits import DENSE, Limits
from ovspec_models import OvspecConfig
from ovspec_transforms import CHANNEL_SCORES, ChannelScore, ExpertRule, Selection, check_expert_rule

Query = Literal["last", "union"]
Summary = Literal["mean", "min_max"]
FfnRule = Literal["top_k", "static", "groups"]
FFN_RULES: tuple[FfnRule, ...] = get_args(FfnRule)


@dataclass(frozen=True, slots=True)
class SparseVerify:
    """Sparse verification: attention over the highest-scoring blocks, and fewer experts and channels.

    These are parts of their own, each sparse where one of its settings is given, or was calibrated for the
    model; attention also where nothing says anything. Lossy: the target's distribution is approximated.
    Prefill stays dense. What is `None` takes the value that was calibrated, or else the default.

    Attention goes by the rule of arXiv 2512.21911: contexts up to `L0` tokens are read whole, of the rest a
    share `rho`, chosen with the last accepted token by the mean key of every block of 32 tokens. The first
    block, the last block of the context and the draft's own blocks are always kept.

    The experts of a mixture are chosen once per pass, for all rows together: by the rule "mass", the budget's
    number of experts with the largest routing weight summed over the rows. Every row keeps its first expert.
    So are the channels of dense feed-forward layers, by the activations of their gates.

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
        expert_budget: what `expert_rule` counts: one number, or one per layer with experts; -1 is no limit.
        expert_rule: "mass" (default): experts that a pass reads of a layer. "top_k": experts of each row.
            "share", of arXiv 2512.21911: experts that a row may drop, the lowest, while their share of the
            row's routing weight is below `expert_share_bound`.
        expert_share_bound: of the rule "share", 0 to 1: one number, or one per layer with experts.
        ffn_density: share of a feed-forward layer's channels that a pass reads, above 0, up to 1: one number,
            or one per layer.
        ffn_rule: which channels `ffn_density` keeps: "top_k" (default), those with the highest scores. With
            channels that were calibrated for the model: "static", always the same ones, that matter most;
            "groups", the groups of channels that a pass needs most, as the gates of some estimate it.
        ffn_threshold: instead of it, the lowest score of a channel that is read, at least 0.
        ffn_score: of a channel, from the magnitudes of its activated gate: "max" over the draft's rows
            (default), or "mean", in which later rows count less. Not for the rules "static" and "groups".

    Raises:
        ValueError: a value out of range, more than one of `L0`/`rho`, `budget` and `coverage`, or of
            `ffn_density` and `ffn_threshold`, or a rule or score without an amount.
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
    expert_budget: int | tuple[int, ...] | None = None
    expert_rule: ExpertRule | None = None
    expert_share_bound: float | tuple[float, ...] | None = None
    ffn_density: float | tuple[float, ...] | None = None
    ffn_threshold: float | tuple[float, ...] | None = None
    ffn_score: ChannelScore | None = None
    ffn_rule: FfnRule | None = None

    def __post_init__(self) -> None:
        for name in PER_LAYER_FIELDS:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
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
        self._check_experts()
        self._check_channels()

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

    def _check_experts(self) -> None:
        budget, rule, bound = self.expert_budget, self.expert_rule, self.expert_share_bound
        for number in numbers_of(budget):
            if isinstance(number, bool) or not isinstance(number, int) or number < -1:
                raise ValueError(
                    f"expert_budget={number!r}: expected a number of experts, or -1 for no limit"
                )
        if rule is not None:
            check_expert_rule(rule)
        if budget is None and (rule, bound) != (None, None):
            name, value = ("expert_rule", rule) if rule else ("expert_share_bound", bound)
            raise ValueError(f"{name}={value!r} needs a budget: give expert_budget as well")
        if (rule == "share") != (bound is not None):
            raise ValueError(
                f"expert_share_bound={bound} with expert_rule={rule!r}: rule 'share' has a bound, others none"
            )
        for share in numbers_of(bound):
            if not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
                raise ValueError(f"expert_share_bound={share!r}: expected a share from 0 to 1")

    def _check_channels(self) -> None:
        if self.ffn_density is not None and self.ffn_threshold is not None:
            raise ValueError(
                f"ffn_density={self.ffn_density} contradicts ffn_threshold={self.ffn_threshold}: give one"
            )
        if self.ffn_score is not None and self.ffn_score not in CHANNEL_SCORES:
            raise ValueError(f"ffn_score={self.ffn_score!r}: expected one of {', '.join(CHANNEL_SCORES)}")
        if self.ffn_score is not None and self.ffn_density is None and self.ffn_threshold is None:
            raise ValueError(f"ffn_score={self.ffn_score!r} needs ffn_density or ffn_threshold: give one")
        if self.ffn_rule is not None and self.ffn_rule not in FFN_RULES:
            raise ValueError(f"ffn_rule={self.ffn_rule!r}: expected one of {', '.join(FFN_RULES)}")
        if self.ffn_rule is not None and self.ffn_density is None:
            raise ValueError(f"ffn_rule={self.ffn_rule!r} needs an amount: give ffn_density as well")
        if self.ffn_rule in ("static", "groups") and self.ffn_score is not None:
            raise ValueError(
                f"ffn_score={self.ffn_score!r} with ffn_rule={self.ffn_rule!r}, which has none: leave it out"
            )
        for share in numbers_of(self.ffn_density):
            if not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
                raise ValueError(f"ffn_density={share!r}: expected a share above 0, up to 1")
        for least in numbers_of(self.ffn_threshold):
            if not isinstance(least, (int, float)) or not 0.0 <= least < math.inf:
                raise ValueError(f"ffn_threshold={least!r}: expected a finite number of at least 0")

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
        return self.ffn_threshold is not None or any(share < 1.0 for share in numbers_of(self.ffn_density))

    @property
    def parts(self) -> tuple[str, ...]:
        """What is sparse, in words."""
        parts = {
            "attention": self.limits_attention,
            "experts": self.limits_experts,
            "channels": self.limits_channels,
        }
        return tuple(name for name, limited in parts.items() if limited)

    def given(self, names: tuple[str, ...]) -> bool:
        """Whether any of these settings was given."""
        return any(getattr(self, name) is not None for name in names)

    @property
    def selection(self) -> Selection:
        """The rule that the graph selects by, defaults filled in."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(Selection)}
        return Selection(**{name: value for name, value in given.items() if value is not None})

    def budget_tokens(self, context: int) -> int:
        """Tokens of a `context` that a verification pass may read; with `coverage` all, as far as it goes."""
        if self.coverage is not None or not self.limits_attention:
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

    def limits(self, context: int, block_size: int, scale: float = 1.0) -> Limits:
        """What a verification pass may read.

        Args:
            context: tokens that its last row sees.
            block_size: tokens per block.
            scale: multiple of attention's budget, `math.inf` for a dense pass.
        """
        if scale == math.inf:
            return DENSE
        blocks = self.budget_blocks(context, block_size)
        if scale != 1.0:
            tokens = math.ceil(scale * self.budget_tokens(context))
            blocks = -1 if tokens >= context else max(1, math.ceil(tokens / block_size))
        return Limits(blocks, self.limits_experts, self.limits_channels)


def numbers_of(value: float | tuple[float, ...] | None) -> tuple[float, ...]:
    """The numbers of a setting that is one, one per layer, or left open."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


_NUMBERS: dict[str, tuple[type, ...]] = {
    "L0": (int,),
    "rho": (int, float),
    "budget": (int,),
    "coverage": (int, float),
}
DEFAULT_L0 = 1024
DEFAULT_RHO = 0.1
# The settings of each part; the amounts of one part are one decision.
AMOUNT_FIELDS = ("L0", "rho", "budget", "coverage")
EXPERT_FIELDS = ("expert_budget", "expert_rule", "expert_share_bound")
CHANNEL_FIELDS = ("ffn_density", "ffn_rule", "ffn_threshold", "ffn_score")
PER_LAYER_FIELDS = ("expert_budget", "expert_share_bound", "ffn_density", "ffn_threshold")
ATTENTION_FIELDS = tuple(
    entry.name for entry in fields(SparseVerify) if entry.name not in EXPERT_FIELDS + CHANNEL_FIELDS
)

Verify = Literal["dense"] | SparseVerify


def calibrated(verify: Verify, config: OvspecConfig | None) -> Verify:
    """Fill what the user left open with what was calibrated for the model, if it was.

    How much is read is one decision in each part: whoever gives a budget or a coverage gets it; `L0` and
    `rho` complete each other. Where experts or channels alone are limited, attention stays dense unless an
    amount was calibrated for it.
    """
    if not isinstance(verify, SparseVerify) or config is None or config.verify is None:
        return verify
    found, left_open = config.verify, list[str]()
    if verify.limits_attention or any(getattr(found, name) is not None for name in AMOUNT_FIELDS):
        left_open += [name for name in ATTENTION_FIELDS if name not in AMOUNT_FIELDS]
        if verify.budget is None and verify.coverage is None:
            left_open += ["L0", "rho"]
            if verify.L0 is None and verify.rho is None:
                left_open += ["budget", "coverage"]
    if verify.expert_budget is None:
        left_open += EXPERT_FIELDS
    if verify.ffn_density is None and verify.ffn_threshold is None:
        left_open += CHANNEL_FIELDS
    filled: dict[str, Any] = {}
    for name in left_open:
        value = getattr(found, name)
        if getattr(verify, name) is None and value is not None:
            filled[name] = tuple(value) if isinstance(value, list) else value
    return replace(verify, **filled)
