"""A mode of verification as a JSON value, with every setting that its passes follow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_transforms import Selection

_SUMMARIES = "key_summary"


@dataclass(frozen=True, slots=True)
class SelectionInForce:
    """By which rule a graph selects, and in which layers.

    Attributes:
        layers: those that select; `None` where stock operations follow the default of the paper's rule.
    """

    rule: Selection
    layers: tuple[int, ...] | None

    @classmethod
    def of(cls, runner: ModelRunner) -> SelectionInForce | None:
        """Of a runner; `None` where its graph does not select."""
        if not runner.attention.selects:
            return None
        names = (spec.name.partition(".") for spec in runner.cache.specs)
        found = tuple(
            sorted(int(layer) for name, _, layer in names if name == _SUMMARIES and layer.isdigit())
        )
        return cls(runner.attention.selection, found or runner.attention.anchor_layers)


def verify_in_force(verify: VerifyMode, selection: SelectionInForce | None) -> str | dict[str, Any]:
    """A mode with its calibrated values, as a JSON value in which the defaults are filled in."""
    if isinstance(verify, CommitVerify):
        sparse = _filled(verify.sparse, selection)
        return {"mode": "commit", "interval": verify.interval, "sparse": sparse}
    if isinstance(verify, SparseVerify):
        return {"mode": "sparse", **_filled(verify, selection)}
    return verify


def prefill_in_force(prefill: SparsePrefill | None) -> str | dict[str, Any]:
    """The same of how prompts are read."""
    if prefill is None:
        return "dense"
    amount = prefill.amount
    return {"mode": "sparse", "L0": amount.L0, "rho": amount.rho, "coverage": amount.coverage}


def _filled(sparse: SparseVerify, selection: SelectionInForce | None) -> dict[str, Any]:
    found = sparse.to_json()
    if not sparse.limits_attention:
        return found
    if sparse.budget is None and sparse.coverage is None:
        found["L0"], found["rho"] = sparse.length_rule
        found["at_most_half"] = not sparse.given(("L0", "rho"))
    rule = selection.rule if selection else sparse.selection
    layers = selection.layers if selection else sparse.anchor_layers
    return {**found, **asdict(rule), "selecting_layers": layers and list(layers)}
