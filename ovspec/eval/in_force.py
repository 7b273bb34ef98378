"""A mode of verification as a JSON value, with every setting that its passes follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ovspec.runtime.model_runner import ModelRunner
from ovspec.verify.commit_verify import CommitVerify
from ovspec.verify.sparse_prefill import SparsePrefill
from ovspec.verify.verify_mode import VerifyMode
from ovspec_models.sparse_verify import SparseVerify

_SUMMARIES = "key_summary"


def anchor_layers_of(runner: ModelRunner) -> tuple[int, ...] | None:
    """The layers that select blocks; `None` where none does, or stock operations follow the default rule."""
    names = (port.get_any_name().partition(".") for port in runner.compiled.inputs)
    found = sorted(int(layer) for name, _, layer in names if name == _SUMMARIES and layer)
    return tuple(found) or runner.attention.anchor_layers


def verify_in_force(verify: VerifyMode, anchor_layers: Sequence[int] | None) -> str | dict[str, Any]:
    """A mode with its calibrated values, as a JSON value in which the defaults are filled in."""
    if isinstance(verify, CommitVerify):
        sparse = _filled(verify.sparse, anchor_layers)
        return {"mode": "commit", "interval": verify.interval, "sparse": sparse}
    if isinstance(verify, SparseVerify):
        return {"mode": "sparse", **_filled(verify, anchor_layers)}
    return verify


def prefill_in_force(prefill: SparsePrefill | None) -> str | dict[str, Any]:
    """The same of how prompts are read."""
    if prefill is None:
        return "dense"
    amount = prefill.amount
    return {"mode": "sparse", "L0": amount.L0, "rho": amount.rho, "coverage": amount.coverage}


def _filled(sparse: SparseVerify, anchor_layers: Sequence[int] | None) -> dict[str, Any]:
    found = sparse.to_json()
    if not sparse.limits_attention:
        return found
    if sparse.budget is None and sparse.coverage is None:
        found["L0"], found["rho"] = sparse.length_rule
    anchors = sparse.anchor_layers if anchor_layers is None else anchor_layers
    return {**found, **asdict(sparse.selection), "anchor_layers": anchors and list(anchors)}
