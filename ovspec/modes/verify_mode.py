"""The modes of verification, and which of them are lossy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec_models import OvspecConfig
from ovspec_models.folder.sparse_verify import (
    AMOUNT_FIELDS,
    ATTENTION_FIELDS,
    CHANNEL_FIELDS,
    EXPERT_FIELDS,
    SparseVerify,
)

VerifyMode: TypeAlias = Literal["dense"] | SparseVerify | CommitVerify


def parse_verify(verify: object) -> VerifyMode:
    """Check a user's `verify` argument; "sparse" is `SparseVerify()`, "commit" is `CommitVerify()`.

    Raises:
        ValueError: it is not a mode.
    """
    if verify == "dense":
        return "dense"
    if verify == "sparse":
        return SparseVerify()
    if verify == "commit":
        return CommitVerify()
    if isinstance(verify, (SparseVerify, CommitVerify)):
        return verify
    raise ValueError(
        f"verify={verify!r}: expected 'dense', 'sparse' or ovspec.SparseVerify(...), 'commit' or "
        "ovspec.CommitVerify(...)"
    )


def calibrated_mode(verify: VerifyMode, config: OvspecConfig | None) -> VerifyMode:
    """Fill settings that the user did not give with calibrated values of the model, if there are any."""
    if isinstance(verify, CommitVerify):
        return replace(verify, sparse=calibrated(verify.sparse, config))
    return calibrated(verify, config) if isinstance(verify, SparseVerify) else verify


def calibrated(verify: SparseVerify, config: OvspecConfig | None) -> SparseVerify:
    """The same of a sparse mode.

    The amount of each part is one decision: a given budget or coverage is used alone; `L0` and `rho` complete
    each other. If only experts or channels are limited, attention stays dense unless an amount was calibrated
    for it.
    """
    if config is None or config.verify is None:
        return verify
    found, left_open = config.verify, list[str]()
    if verify.limits_attention or found.given(AMOUNT_FIELDS):
        rule = verify.rule or found.rule
        names = (name for name in ATTENTION_FIELDS if name not in AMOUNT_FIELDS)
        # Anchors of the paper's rule, which calibrations of older versions wrote, mean nothing to the others.
        left_open += [name for name in names if name != "anchor_layers" or rule == "paper"]
        if verify.budget is None and verify.coverage is None:
            left_open += ["L0", "rho"]
            if verify.L0 is None and verify.rho is None:
                left_open += ["budget", "coverage"]
    if verify.expert_budget is None:
        left_open += EXPERT_FIELDS
    if verify.ffn_density is None:
        left_open += CHANNEL_FIELDS
    filled: dict[str, Any] = {
        name: getattr(found, name) for name in left_open if getattr(verify, name) is None
    }
    return replace(verify, **filled)


def sparse_part(verify: VerifyMode) -> SparseVerify | None:
    """The sparse verification of a mode, provisional or not; `None` for dense."""
    if isinstance(verify, CommitVerify):
        return verify.sparse
    return verify if isinstance(verify, SparseVerify) else None


def attention_part(verify: VerifyMode) -> SparseVerify | None:
    """The sparse verification of a mode if it makes attention sparse."""
    sparse = sparse_part(verify)
    return sparse if sparse is not None and sparse.limits_attention else None


def why_lossy(
    verify: VerifyMode, acceptance_threshold: float = 1.0, prefill: SparsePrefill | None = None
) -> str:
    """Why the output may differ from the model's own, in a few words; empty if it cannot."""
    reasons = []
    if isinstance(verify, SparseVerify):
        parts = "" if verify.parts == ("attention",) else f" ({', '.join(verify.parts)})"
        reasons.append(f"sparse verification approximates the model{parts}")
    if prefill is not None:
        reasons.append("sparse prefill approximates what the model reads of the prompt")
    if acceptance_threshold < 1.0:
        reasons.append(
            f"acceptance_threshold={acceptance_threshold:g} accepts tokens that the model would not"
        )
    return "; ".join(reasons)
