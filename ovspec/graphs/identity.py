"""What keeps a model from the promise that a row's logits do not depend on what else is in its pass."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import openvino as ov

from ovspec.cache.cache import CacheTensor, cache_layout
from ovspec.operations.backends import Backends
from ovspec_transforms import TransformReport, moe_layers
from ovspec_transforms.graph import nodes_of_type

_PRODUCTS_OF_A_LAYER = 3  # gate, up and down of its experts


@dataclass(frozen=True, slots=True)
class StockProducts:
    """Products with weights that OpenVINO computes in a graph.

    Attributes:
        linear: those of one matrix.
        expert_layers: layers whose experts it computes though `SparseMoE` knows their form.
        expert_products: its other products with the matrices of several experts at once.
        why_linear, why_experts: why our operation does not take the first of those that it knows; empty where
            it takes all of them.
    """

    linear: int = 0
    expert_layers: int = 0
    expert_products: int = 0
    why_linear: str = field(default="", compare=False)
    why_experts: str = field(default="", compare=False)

    @classmethod
    def of(
        cls, model: ov.Model, reports: Sequence[TransformReport] = (), taken: Container[str] = ()
    ) -> StockProducts:
        """Count them, those aside whose names are in `taken`; `reports` say what was left as it was."""
        products = [node for node in nodes_of_type(model, "MatMul") if node.get_friendly_name() not in taken]
        weights = [shape for node in products if (shape := node.input(1).get_partial_shape()).is_static]
        routed = sum(len(shape) > 2 and shape[0].get_length() > 1 for shape in weights)
        layers = sum(not layer.native for layer in moe_layers(model))
        others = max(0, routed - layers * _PRODUCTS_OF_A_LAYER)
        why = {report.name: report.left[0] for report in reports if report.left}
        linear, experts = why.get("NativeLinear", ""), why.get("SparseMoE", "")
        return cls(len(weights) - routed, layers, others, linear, experts)


def identity_breakers(
    backends: Backends, stock: StockProducts, caches: tuple[CacheTensor, ...], block_size: int
) -> tuple[str, ...]:
    """Sentences that name each cause, with its remedy; none where outputs are promised to be identical."""
    found = []
    if backends.attention.backend == "stock":
        found.append(
            "attention='stock': OpenVINO's attention sums in an order that follows the rows of a pass; "
            + (f"the model has {why}" if (why := backends.why_stock_attention) else "use attention='native'")
        )
    if stock.linear:
        remedy = (
            "use linear='native'"
            if backends.linear == "stock"
            else f"linear='native' does not take their weights{_because(stock.why_linear)}"
        )
        found.append(
            f"{stock.linear} products with weights are OpenVINO's, which picks kernels by the number of "
            f"rows; {remedy}"
        )
    if stock.expert_layers:
        asked = backends.experts is not None and backends.experts.backend == "native"
        remedy = (
            f"experts='native' does not take their weights{_because(stock.why_experts)}"
            if asked
            else "use experts='native'"
        )
        found.append(
            f"the experts of {stock.expert_layers} layers are OpenVINO's, which groups the rows of a pass by "
            f"expert and picks kernels by their number; {remedy}"
        )
    if stock.expert_products:
        found.append(
            f"{stock.expert_products} products with experts' weights are OpenVINO's, which picks kernels by "
            "the number of rows; experts='native' does not know their form"
        )
    keys = (spec for spec in caches if spec.name.startswith("key_cache."))
    if any(cache_layout(spec, block_size) == "u8 by channel" for spec in keys):
        found.append(
            "u8 keys by channel: every new token rounds its whole block anew; use "
            "KEY_CACHE_QUANT_MODE=BY_TOKEN"
        )
    states = (spec.element_type for spec in caches if "state_table" in spec.name)
    if rounded := next((kind for kind in states if kind != ov.Type.f32), None):
        found.append(
            f"states of linear attention in {rounded.get_type_name()}: they are rounded where a pass ends; "
            "use INFERENCE_PRECISION_HINT=f32"
        )
    return tuple(found)


def _because(why: str) -> str:
    return f" ({why})" if why else ""
