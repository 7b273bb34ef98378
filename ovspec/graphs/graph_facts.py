"""Facts about a transformed graph that a runner needs in addition to the compiled model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import openvino as ov

from ovspec.cache.cache import CacheTensor
from ovspec.graphs.compile import cache_tensors
from ovspec.graphs.identity import StockProducts
from ovspec_transforms import (
    AdaptedLayer,
    AddressedCache,
    FfnLayer,
    MoELayer,
    TransformReport,
    moe_layers,
    remove_addressed,
)


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts about one graph; CACHE_DIR stores them with the compiled model.

    Attributes:
        rope_limit: length of text up to which the short rotary frequencies apply; `None`: no long ones.
        stock_products: products with weights that OpenVINO computes.
        anchors: of every layer that stock operations make sparse, ascending.
        addressed: caches that are no inputs of the graph.
        adapted: linear layers that adapters can add to, in the order of their numbers; none in a graph that
            was not made for adapters.
    """

    reports: tuple[TransformReport, ...]
    rope_limit: int | None
    expert_layers: tuple[MoELayer, ...]
    ffn_layers: tuple[FfnLayer, ...]
    stock_products: StockProducts = field(default_factory=StockProducts)
    anchors: tuple[int, ...] = ()
    addressed: tuple[AddressedCache, ...] = ()
    adapted: tuple[AdaptedLayer, ...] = ()

    @classmethod
    def of(
        cls,
        model: ov.Model,
        reports: Sequence[TransformReport],
        rope_limit: int | None,
        mlps: Sequence[FfnLayer],
    ) -> GraphFacts:
        """Read a graph after its transforms; `mlps` are those that it had before."""
        return cls(tuple(reports), rope_limit, tuple(moe_layers(model)), tuple(mlps))

    def behind(self, model: ov.Model, late: Sequence[TransformReport]) -> GraphFacts:
        """The facts of the same graph after its last transforms; inputs that nothing reads are removed."""
        reports = (*self.reports, *late)
        products = StockProducts.of(model, reports)
        return replace(self, reports=reports, stock_products=products, addressed=remove_addressed(model))

    def caches(self, compiled: ov.CompiledModel) -> list[CacheTensor]:
        """All caches of the compiled graph: its inputs, and those that it reads by their addresses."""
        by_address = (
            CacheTensor(cache.name, getattr(ov.Type, cache.element_type), cache.block_shape)
            for cache in self.addressed
        )
        return [*cache_tensors(compiled), *by_address]

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> GraphFacts:
        """Facts that were written as JSON by their `asdict`.

        Raises:
            KeyError, TypeError: the object is not of this form.
        """
        return cls(
            tuple(
                TransformReport(report["name"], tuple(report["changed"]), tuple(report["left"]))
                for report in body["reports"]
            ),
            body["rope_limit"],
            tuple(MoELayer(**layer) for layer in body["expert_layers"]),
            tuple(FfnLayer(**layer) for layer in body["ffn_layers"]),
            StockProducts(**body["stock_products"]),
            tuple(body["anchors"]),
            tuple(AddressedCache(**{**c, "block_shape": tuple(c["block_shape"])}) for c in body["addressed"]),
            tuple(AdaptedLayer(**layer) for layer in body["adapted"]),
        )
