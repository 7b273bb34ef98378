"""The gated MLPs of a model, as optimum-intel exports them and as GatedMLP."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from ovspec_transforms.graph import source_node
from ovspec_transforms.weights.expert_weights import UnknownPatternError

GATED_MLP = "GatedMLP"
HIDDEN, GATE, UP, DOWN, LIMITS = 0, 1, 4, 7, 10
ACTIVATIONS = ("Swish", "Gelu")
# Other activations that feed-forward layers are known to use.
_OTHER_ACTIVATIONS = ("Relu", "HSwish", "Mish", "Tanh")


@dataclass(frozen=True, slots=True)
class FfnLayer:
    """The gated MLP of one layer.

    Attributes:
        name: friendly name of its down projection.
        index: number among the gated MLPs, in graph order.
        channels: of its inner activation.
        hidden: size of a row.
        native: whether it is a GatedMLP operation already.
    """

    name: str
    index: int
    channels: int
    hidden: int
    native: bool


@dataclass(frozen=True, slots=True)
class Product:
    """A MatMul, of which `half` (0 or 1) is taken, or all of it."""

    matmul: ov.Node
    half: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of what is taken."""
        weights = self.matmul.input(1).get_partial_shape()
        if not self.matmul.get_attributes()["transpose_b"] or weights.is_dynamic:
            raise UnknownPatternError(f"weights are {weights}, expected transposed [out, in]")
        out, inputs = (int(dim.get_length()) for dim in weights)
        return (out if self.half is None else out // 2), inputs


@dataclass(frozen=True, slots=True)
class FfnPattern:
    """The nodes of one gated MLP, `down(activation(gate(rows)) * up(rows))`.

    `rows` is f32 `[.., hidden]`; `activation` as GatedMLP calls it. Gate and up may be halves of one product
    (Phi-3).
    """

    rows: ov.Output
    gate: Product
    up: Product
    down: ov.Node
    activation: str


def found(node: ov.Node) -> str:
    """How a message names a node."""
    return f"{node.get_type_name()} {node.get_friendly_name()!r}"


def _product(node: ov.Node, what: str) -> ov.Node:
    if node.get_type_name() != "MatMul":
        raise UnknownPatternError(f"{found(node)} stands where the {what} projection was expected")
    if node.get_attributes()["transpose_a"]:
        raise UnknownPatternError(f"the {what} projection {found(node)} takes transposed rows")
    return node


def _part(output: ov.Output, what: str) -> Product:
    """The product behind gate or up, or the half of one that a split takes."""
    node = output.get_node()
    if node.get_type_name() not in ("VariadicSplit", "Split") or node.get_output_size() != 2:
        return Product(_product(node, what))
    sizes = [node.output(i).get_partial_shape()[-1] for i in (0, 1)]
    if sizes[0].is_dynamic or sizes[0] != sizes[1]:
        raise UnknownPatternError(f"{found(node)} splits into {sizes[0]} and {sizes[1]}, expected halves")
    return Product(_product(source_node(node), what), output.get_index())


def _activation(node: ov.Node) -> str:
    if node.get_type_name() == "Swish":
        if node.get_input_size() > 1:
            beta = source_node(node, 1)
            if beta.get_type_name() != "Constant" or float(beta.get_data().reshape(-1)[0]) != 1.0:
                raise UnknownPatternError(f"{found(node)} has a beta other than 1")
        return "silu"
    return "gelu_tanh" if node.get_attributes()["approximation_mode"].lower() == "tanh" else "gelu_erf"


def _factors(down: ov.Node) -> tuple[ov.Node, ov.Output] | None:
    """The activation and the other factor of what a product takes; `None` where it takes no gated rows."""
    if down.get_type_name() != "MatMul" or source_node(down).get_type_name() != "Multiply":
        return None
    inner = source_node(down)
    for position in (0, 1):
        if source_node(inner, position).get_type_name() in ACTIVATIONS:
            return source_node(inner, position), inner.input(1 - position).get_source_output()
    return None


def _gated(down: ov.Node) -> tuple[ov.Node, ov.Output]:
    factors = _factors(down)
    if factors is None:
        raise UnknownPatternError(f"{found(down)} takes no gated rows")
    return factors


def activated_gate(down: ov.Node) -> ov.Node:
    """The activation behind the MatMul `down`, of which `is_gated_mlp` holds."""
    return _gated(down)[0]


def is_gated_mlp(node: ov.Node) -> bool:
    """Whether a MatMul takes an activation times something with two-dimensional weights."""
    return _factors(node) is not None and len(node.input(1).get_partial_shape()) == 2


def other_activation(down: ov.Node) -> ov.Node | None:
    """The activation between the products of a feed-forward part of another form, which ends with `down`.

    `None` for a node that ends none. The rows of `down` are the activation, in another shape too (GPT-2), a
    power of it (squared ReLU), or a product with it.
    """
    if down.get_type_name() != "MatMul" or len(down.input(1).get_partial_shape()) != 2:
        return None
    inner = source_node(down)
    while inner.get_type_name() in ("Power", "Convert", "Reshape"):
        inner = source_node(inner)
    factors = (0, 1) if inner.get_type_name() == "Multiply" else ()
    known = (*ACTIVATIONS, *_OTHER_ACTIVATIONS)
    behind = [inner, *(source_node(inner, position) for position in factors)]
    return next((node for node in behind if node.get_type_name() in known), None)


def match_ffn(down: ov.Node) -> FfnPattern:
    """Read the gated MLP that ends with the MatMul `down`, of which `is_gated_mlp` holds.

    Raises:
        UnknownPatternError: the graph behind `down` is another.
    """
    gated, other = _gated(down)
    gate, up = _part(gated.input(0).get_source_output(), "gate"), _part(other, "up")
    rows, others = (part.matmul.input(0).get_source_output() for part in (gate, up))
    if rows.get_node().get_friendly_name() != others.get_node().get_friendly_name():
        raise UnknownPatternError("gate and up projections take different rows")
    return FfnPattern(rows, gate, up, _product(down, "down"), _activation(gated))


def ffn_layers(model: ov.Model) -> list[FfnLayer]:
    """The gated MLPs of a known form, in graph order."""
    layers: list[FfnLayer] = []
    for node in model.get_ordered_ops():
        native = node.get_type_name() == GATED_MLP
        if native:
            channels = node.input(UP).get_partial_shape()[0].get_length()
            hidden = node.input(HIDDEN).get_partial_shape()[-1].get_length()
        elif is_gated_mlp(node):
            try:
                channels, hidden = match_ffn(node).gate.shape
            except UnknownPatternError:
                continue
        else:
            continue
        layers.append(FfnLayer(node.get_friendly_name(), len(layers), int(channels), int(hidden), native))
    return layers
