"""How the target verifies: densely, or sparsely by settings that may come from calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ovspec_models import OvspecConfig
from ovspec_models.sparse_verify import AMOUNT_FIELDS as AMOUNT_FIELDS
from ovspec_models.sparse_verify import ATTENTION_FIELDS
from ovspec_models.sparse_verify import CHANNEL_FIELDS as CHANNEL_FIELDS
from ovspec_models.sparse_verify import EXPERT_FIELDS as EXPERT_FIELDS
from ovspec_models.sparse_verify import PER_LAYER_FIELDS as PER_LAYER_FIELDS
from ovspec_models.sparse_verify import SparseVerify as SparseVerify
from ovspec_models.sparse_verify import numbers_of as numbers_of

Verify = Literal["dense"] | SparseVerify


def calibrated(verify: Verify, config: OvspecConfig | None) -> Verify:
    """Fill settings that the user did not give with calibrated values of the model.

    The amount of each part is one decision: a given budget or coverage is used alone; `L0` and `rho` complete
    each other. If only experts or channels are limited, attention stays dense unless an amount was calibrated
    for it.
    """
    if not isinstance(verify, SparseVerify) or config is None or config.verify is None:
        return verify
    found, left_open = config.verify, list[str]()
    if verify.limits_attention or found.given(AMOUNT_FIELDS):
        left_open += [name for name in ATTENTION_FIELDS if name not in AMOUNT_FIELDS]
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
