"""The modes of verification: what a user may ask for, and which of them change the output."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, TypeAlias

from ovspec.verify.commit_verify import CommitVerify
from ovspec.verify.verify_config import AMOUNT_FIELDS, SparseVerify, calibrated
from ovspec_models import OvspecConfig

VerifyMode: TypeAlias = Literal["dense"] | SparseVerify | CommitVerify


def parse_verify(verify: object) -> VerifyMode:
    """Check a user's `verify` argument; "sparse" is `SparseVerify()`, "commit" is `CommitVerify()`.

    Raises:
        ValueError: it is no mode.
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
    """Fill what the user left open with what was calibrated for the model, if it was."""
    if isinstance(verify, CommitVerify):
        sparse = calibrated(verify.sparse, config)
        assert isinstance(sparse, SparseVerify)
        return replace(verify, sparse=sparse)
    return calibrated(verify, config)


def sparse_part(verify: VerifyMode) -> SparseVerify | None:
    """The sparse verification in a mode, provisional or not; `None` where there is none."""
    if isinstance(verify, CommitVerify):
        return verify.sparse
    return verify if isinstance(verify, SparseVerify) else None


def attention_part(verify: VerifyMode) -> SparseVerify | None:
    """The sparse verification in a mode if attention is sparse in it."""
    sparse = sparse_part(verify)
    return sparse if sparse is not None and sparse.limits_attention else None


def budget_scales(verify: VerifyMode) -> tuple[float, ...]:
    """Multiples of attention's budget that a schedule may choose from, `math.inf` for dense passes.

    Sparse verification keeps to the budget that it was given. With commits the budget changes nothing but the
    speed: one that the user gave stands, and one that was left open is free.
    """
    if not isinstance(verify, CommitVerify):
        return (1.0,)
    sparse = verify.sparse
    is_open = sparse.limits_attention and not sparse.given(AMOUNT_FIELDS)
    return (0.5, 1.0, 2.0, math.inf) if is_open else (1.0, math.inf)


def why_lossy(verify: VerifyMode, acceptance_threshold: float = 1.0) -> str:
    """What makes the output differ from the model's own, in a few words; empty where nothing does."""
    reasons = []
    if isinstance(verify, SparseVerify):
        parts = "" if verify.parts == ("attention",) else f" ({', '.join(verify.parts)})"
        reasons.append(f"sparse verification approximates the model{parts}")
    if acceptance_threshold < 1.0:
        reasons.append(
            f"acceptance_threshold={acceptance_threshold:g} accepts tokens that the model would not"
        )
    return "; ".join(reasons)
