"""The products of one layer's experts, and the activation between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_transforms.graph import source_node
from ovspec_transforms.weights.expert_weights import UnknownPatternError


@dataclass(frozen=True, slots=True)
class Projection:
    """A batched product with the weights of all experts.

    Attributes:
        columns: which of its outputs the projection are.
        bias: f32 `[experts, out of the matmul]`, `None` without one.
    """

    matmul: ov.Node
    columns: slice
    bias: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class GatedExperts:
    """Three projections and what happens between them.

    With a `limit` it is GPT-OSS's: gates are `limit` at most, ups lie within -`limit` and `limit`, and
    `gate * sigmoid(alpha * gate) * (up + 1)` takes the place of `silu(gate) * up`.
    """

    gate: Projection
    up: Projection
    down: Projection
    limit: float = 0.0
    alpha: float = 1.0


def expect(node: ov.Node, *types: str) -> ov.Node:
    """The node, which must be of one of the types."""
    if node.get_type_name() not in types:
        found = f"{node.get_type_name()} {node.get_friendly_name()!r}"
        raise UnknownPatternError(f"{found} stands where {' or '.join(types)} was expected")
    return node


def behind(node: ov.Node, *types: str) -> ov.Node:
    """The node behind the first input, which must be of one of the types."""
    return expect(source_node(node), *types)


def peel(node: ov.Node, *types: str) -> ov.Node:
    """The first node of another type on the way back through first inputs."""
    while node.get_type_name() in types:
        node = source_node(node)
    return node


def product_of(node: ov.Node) -> tuple[ov.Node, ov.Node | None]:
    """A product that a bias may be added to, and the bias."""
    if node.get_type_name() == "Add" and source_node(node).get_type_name() == "MatMul":
        return source_node(node), source_node(node, 1)
    return node, None


def match_gated(last: ov.Node) -> GatedExperts:
    """Read the products that end with `last`, the down projection.

    Raises:
        UnknownPatternError: the graph before it has another form.
    """
    down = _projection(last)
    inner = behind(down.matmul, "Multiply")
    swish, other = source_node(inner, 0), source_node(inner, 1)
    if other.get_type_name() == "Swish":
        swish, other = other, swish
    expect(swish, "Swish")
    if other.get_type_name() == "Add" and source_node(other).get_type_name() == "Clamp":
        return _clamped(swish, other, down)
    if _beta(swish) != 1:
        raise UnknownPatternError(
            f"Swish {swish.get_friendly_name()!r} multiplies its input by {_beta(swish)}"
        )
    return GatedExperts(_projection(source_node(swish)), _projection(other), down)


def _clamped(swish: ov.Node, shifted: ov.Node, down: Projection) -> GatedExperts:
    """GPT-OSS's: gates and ups are every other output of one product."""
    clamp, bounded = source_node(shifted), behind(swish, "Minimum")
    bounds, limit = clamp.get_attributes(), _number(source_node(bounded, 1))
    if (
        bounds["max"] != limit
        or bounds["min"] != -limit
        or limit <= 0
        or _number(source_node(shifted, 1)) != 1
    ):
        raise UnknownPatternError(
            f"Clamp {clamp.get_friendly_name()!r} has bounds that SparseMoE does not know"
        )
    gate, up = (_projection(source_node(node)) for node in (bounded, clamp))
    return GatedExperts(gate, up, down, limit, _beta(swish))


def _beta(swish: ov.Node) -> float:
    return _number(source_node(swish, 1)) if swish.get_input_size() > 1 else 1.0


def _projection(node: ov.Node) -> Projection:
    columns = slice(None)
    if node.get_type_name() == "Slice":
        start, _, step, axis = (int(_number(source_node(node, position))) for position in range(1, 5))
        if axis not in (-1, 2) or not 0 <= start < step:
            raise UnknownPatternError(
                f"Slice {node.get_friendly_name()!r} takes other parts than columns in turn"
            )
        columns, node = slice(start, None, step), source_node(node)
    matmul, bias = product_of(node)
    expect(matmul, "MatMul")
    return Projection(matmul, columns, None if bias is None else _bias(bias, matmul))


def _values(node: ov.Node) -> NDArray[np.float64]:
    constant = expect(peel(node, "Convert"), "Constant")
    values: NDArray[np.float64] = constant.get_data(dtype=np.float64)  # `data` misreads bf16
    return values


def _number(node: ov.Node) -> float:
    values = _values(node)
    if values.size != 1:
        raise UnknownPatternError(f"{node.get_friendly_name()!r} holds {values.size} numbers, expected one")
    return float(values.reshape(-1)[0])


def _bias(node: ov.Node, matmul: ov.Node) -> NDArray[np.float32]:
    values, dims = _values(node), matmul.input(1).get_partial_shape()
    out = dims[1 if matmul.get_attributes()["transpose_b"] else 2]
    if len(values.shape) != 3 or values.shape[1] != 1 or [dims[0], out] != [values.shape[0], values.shape[2]]:
        raise UnknownPatternError(
            f"biases {node.get_friendly_name()!r} are of shape {list(values.shape)} beside weights of {dims}"
        )
    return values[:, 0].astype(np.float32)
