"""Which operation computes routed experts, and how many of them a pass may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.per_layer import per_layer
from ovspec.passes.tables import Rows
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_transforms import (
    VERIFY_EXPERT_BUDGETS,
    MoELayer,
    TransformReport,
    budget_experts,
    budget_experts_stock,
    moe_layers,
    sparse_moe,
)

ExpertBackend = Literal["native", "stock"]
_KIND = "layer with experts"


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """How the experts of a mixture are computed.

    Attributes:
        backend: "native" replaces them by our operation, "stock" leaves them to OpenVINO.
        budget: experts of a layer that a limited pass reads: one number, or one per layer with experts, of
            which -1 is no budget. `None` makes a graph without budgets.
        optional: without a budget, leave experts as they are where `backend` can't be had: those of an
            unknown form, and those that the model was exported with.

    Raises:
        ValueError: an unknown backend.
    """

    backend: ExpertBackend = "native"
    budget: int | tuple[int, ...] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if self.backend not in ("native", "stock"):
            raise ValueError(f"experts={self.backend!r}: expected 'native' or 'stock'")

    @property
    def limits(self) -> bool:
        """Whether the graph can limit experts."""
        return self.budget is not None

    @property
    def graph(self) -> tuple[object, ...]:
        """The fields that decide the graph; the numbers are inputs of every pass."""
        return (self.backend, self.limits, self.optional)

    def transform(self, model: ov.Model) -> list[TransformReport]:
        """Change the experts of `model` in place.

        Raises:
            ValueError: experts of a form that is not known, none at all, or a budget out of range.
        """
        layers = moe_layers(model)
        if self.limits and not layers and (left := sparse_moe(model, allow_partial=True).left):
            raise ValueError(f"expert budget {self.budget}: layer {left[0]}; leave it out")
        self.check(layers)
        if self.backend == "stock":
            native = [layer.name for layer in layers if layer.native]
            if native and not self.optional:
                raise ValueError(
                    f"experts='stock': layer {native[0]} is our operation already, as the model was exported "
                    "with --sparse-moe; pass experts='native', or export it without"
                )
            return [budget_experts_stock(model)] if self.limits else []
        made = bool(layers) and all(layer.native for layer in layers)
        reports = [] if made else [sparse_moe(model, allow_partial=self.optional)]
        return [*reports, budget_experts(model)] if self.limits else reports

    def check(self, layers: Sequence[MoELayer]) -> None:
        """Refuse budgets that do not fit the layers with experts.

        Raises:
            ValueError: no layers for a budget, another number of them, or a budget out of range.
        """
        if not self.limits:
            return
        if not layers:
            raise ValueError(
                f"expert budget {self.budget}: this model has no routed experts of a form that is known; "
                "leave it out"
            )
        for layer, budget in zip(layers, self.budgets(len(layers)), strict=True):
            if budget != -1 and not layer.top_k <= budget <= layer.experts:
                raise ValueError(
                    f"expert budget {budget} is out of range in layer {layer.name}: expected {layer.top_k} "
                    f"to {layer.experts} (its top-k to all its experts)"
                )

    def budgets(self, layers: int) -> NDArray[np.int32]:
        """The budget of every layer with experts, i32 `[layers]`."""
        budgets = per_layer("expert budget", -1 if self.budget is None else self.budget, layers, _KIND)
        # No model has so many experts: what does not fit in a number of 32 bits is out of range all the same.
        return np.array([min(int(budget), np.iinfo(np.int32).max) for budget in budgets], np.int32)


def expert_config(backend: ExpertBackend, sparse: SparseVerify) -> ExpertConfig | None:
    """The configuration that `sparse` needs; `None` if it does not limit experts."""
    if not sparse.limits_experts:
        return None
    return ExpertConfig(backend, sparse.expert_budget)


class ExpertBudgets:
    """Inputs of a pass that limit experts, and their `names`."""

    def __init__(self, config: ExpertConfig, layers: int) -> None:
        self.names = {VERIFY_EXPERT_BUDGETS}
        self._limit = config.budgets(layers)
        self._none = np.full(layers, -1, np.int32)
        self._backend = config.backend

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`verify_expert_budgets` of a pass.

        Our operation leaves rows out that are not under verification; stock operations can't, so there a
        pass with any row that is not limited has no budget.
        """
        limits = [rows.limits_experts for rows in batch]
        limited = any(limits) if self._backend == "native" else all(limits)
        return {VERIFY_EXPERT_BUDGETS: self._limit if limited else self._none}
