"""Which operation computes routed experts, and how many of them a pass may read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.per_layer import per_layer
from ovspec.runtime.tables import Rows
from ovspec.verify.verify_config import SparseVerify
from ovspec_transforms import (
    VERIFY_EXPERT_BUDGETS,
    VERIFY_EXPERT_SHARE_BOUNDS,
    ExpertRule,
    MoELayer,
    PassReport,
    budget_experts,
    budget_experts_stock,
    check_expert_budget,
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
        rule: how passes are limited, `None` for a graph that has no budgets.
        budget: what `rule` counts, as in `ovspec_transforms.budget_experts`: one number, or one per layer
            with experts, of which -1 is no budget.
        share_bound: of rule "share": one number, or one per layer with experts.
        optional: without a rule, leave experts as they are where `backend` can't be had: those of an unknown
            form, and those that the model was exported with.

    Raises:
        ValueError: an unknown backend, a budget without a rule or a rule without a budget, or a bound that is
            not finite.
    """

    backend: ExpertBackend = "native"
    rule: ExpertRule | None = None
    budget: int | tuple[int, ...] | None = None
    share_bound: float | tuple[float, ...] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if self.backend not in ("native", "stock"):
            raise ValueError(f"experts={self.backend!r}: expected 'native' or 'stock'")
        if (self.rule is None) != (self.budget is None):
            raise ValueError(
                f"expert rule {self.rule!r} with expert budget {self.budget}: give both or neither"
            )
        if (self.rule == "share") != (self.share_bound is not None):
            raise ValueError(
                f"expert rule {self.rule!r} with share bound {self.share_bound}: the bound belongs to 'share'"
            )
        bounds = self.share_bound if isinstance(self.share_bound, tuple) else (self.share_bound or 0.0,)
        for bound in bounds:
            if not math.isfinite(bound) or not 0.0 <= bound <= 1.0:
                raise ValueError(f"share bound {bound}: expected a share from 0 to 1")

    @property
    def graph(self) -> tuple[object, ...]:
        """What of it decides the graph; the numbers are inputs of every pass."""
        return (self.backend, self.rule, self.optional)

    def transform(self, model: ov.Model) -> list[PassReport]:
        """Change the experts of `model` in place.

        Raises:
            ValueError: experts of a form that is not known, none at all, or a budget out of range.
        """
        layers = moe_layers(model)
        if self.rule is not None and not layers and (left := sparse_moe(model, allow_partial=True).left):
            raise ValueError(f"expert budget {self.budget}: layer {left[0]}; leave it out")
        self.check(layers)
        if self.backend == "stock":
            native = [layer.name for layer in layers if layer.native]
            if native and not self.optional:
                raise ValueError(
                    f"experts='stock': layer {native[0]} is our operation already, as the model was exported "
                    "with --sparse-moe; pass experts='native', or export it without"
                )
            return [budget_experts_stock(model, self.rule)] if self.rule else []
        made = bool(layers) and all(layer.native for layer in layers)
        reports = [] if made else [sparse_moe(model, allow_partial=self.optional)]
        return [*reports, budget_experts(model, self.rule)] if self.rule else reports

    def check(self, layers: Sequence[MoELayer]) -> None:
        """Refuse budgets that do not fit the layers with experts.

        Raises:
            ValueError: no layers for a budget, another number of them, or a budget out of range.
        """
        if self.rule is None:
            return
        if not layers:
            raise ValueError(
                f"expert budget {self.budget}: this model has no routed experts of a form that is known; "
                "leave it out"
            )
        for layer, budget in zip(layers, self.budgets(len(layers)), strict=True):
            if budget != -1:
                check_expert_budget(self.rule, int(budget), [layer])
        self.share_bounds(len(layers))

    def budgets(self, layers: int) -> NDArray[np.int32]:
        """The budget of every layer with experts, i32 `[layers]`."""
        budgets = per_layer("expert budget", -1 if self.budget is None else self.budget, layers, _KIND)
        # No model has so many experts: what does not fit in a number of 32 bits is out of range all the same.
        return np.array([min(int(budget), np.iinfo(np.int32).max) for budget in budgets], np.int32)

    def share_bounds(self, layers: int) -> NDArray[np.float32]:
        """The bound of every layer with experts, f32 `[layers]`."""
        return np.array(per_layer("share bound", self.share_bound or 0.0, layers, _KIND), np.float32)


def expert_config(backend: ExpertBackend, sparse: SparseVerify) -> ExpertConfig | None:
    """What the experts' part of `sparse` asks of a graph, `None` where it limits nothing."""
    if not sparse.limits_experts:
        return None
    return ExpertConfig(
        backend, sparse.expert_rule or "mass", sparse.expert_budget, sparse.expert_share_bound
    )


class ExpertBudgets:
    """The budgets of every pass.

    Args:
        config: how passes are limited; it has a rule.
        layers: layers with experts.
    """

    def __init__(self, config: ExpertConfig, layers: int) -> None:
        self._limit = config.budgets(layers)
        self._none = np.full(layers, -1, np.int32)
        self._bounds = config.share_bounds(layers)
        self._backend = config.backend

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {VERIFY_EXPERT_BUDGETS, VERIFY_EXPERT_SHARE_BOUNDS}

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`verify_expert_budgets` and `verify_expert_share_bounds` of a pass.

        Our operation leaves rows out that are not under verification; stock operations can't, so there a
        pass with any row that is not limited has no budget.
        """
        limits = [rows.limits_experts for rows in batch]
        limited = any(limits) if self._backend == "native" else all(limits)
        return {
            VERIFY_EXPERT_BUDGETS: self._limit if limited else self._none,
            VERIFY_EXPERT_SHARE_BOUNDS: self._bounds,
        }
