"""Which attention a target needs, for how it verifies and who drafts."""

from __future__ import annotations

from dataclasses import replace

from ovspec.drafters import DrafterChoice, SparseSelf
from ovspec.model_runner import Attention, AttentionConfig
from ovspec.verify_config import SparseVerify
from ovspec.verify_mode import VerifyMode, sparse_part


def routing(attention: Attention, verify: VerifyMode, choice: DrafterChoice | None) -> AttentionConfig:
    """What the target's graph must be able to do.

    Raises:
        ValueError: verification and the drafter ask for different rules of selection.
    """
    drafting = choice.sparse if isinstance(choice, SparseSelf) else None
    parts = [sparse for sparse in (sparse_part(verify), drafting) if sparse]
    if not parts:
        return AttentionConfig(attention)
    rule = parts[0]
    for name in ("anchor_layers", "query", "summary", "sink_blocks", "local_blocks", "refresh_interval"):
        mine, other = getattr(rule, name), getattr(parts[-1], name)
        if None not in (mine, other) and mine != other:
            raise ValueError(
                f"{name}={mine} of verify and {other} of the drafter differ: one graph has one rule"
            )
        rule = replace(rule, **{name: other if mine is None else mine})
    if parts[-1].coverage != rule.coverage:
        raise ValueError(
            f"coverage={rule.coverage} of verify and {parts[-1].coverage} of the drafter differ: one graph "
            "has one coverage"
        )
    return sparse_attention(attention, rule, rule.anchor_layers)


def sparse_attention(
    attention: Attention, sparse: SparseVerify, anchor_layers: tuple[int, ...] | None = None
) -> AttentionConfig:
    """A graph that selects blocks by the rule of `sparse`."""
    coverage = 1.0 if sparse.coverage is None else sparse.coverage
    return AttentionConfig(attention, True, anchor_layers, sparse.selection, coverage)
