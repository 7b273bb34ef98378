"""Hidden states of named layer boundaries as an output, for heads that draft from them."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.paged_cache import VALUE
from ovspec_transforms.graph import (
    GATED_DELTA_NET,
    PAGED_ATTENTION,
    SELECTIVE_SSM,
    SHORT_CONVOLUTION,
    add_output,
    add_parameter,
    i64,
    nodes_of_type,
    source_node,
)
from ovspec_transforms.heads.gather_logits import SAMPLED_TOKENS_INDICES, lm_head
from ovspec_transforms.report import TransformReport

HIDDEN_ROWS = "hidden_rows"
BOUNDARY_STATES = "boundary_states"

# Operations that mix tokens, and which input is made by a linear layer and not rotated.
_MIXERS = {PAGED_ATTENTION: VALUE, GATED_DELTA_NET: VALUE, SELECTIVE_SSM: 3, SHORT_CONVOLUTION: 0}
# What decompression of weights consists of.
_DECOMPRESSION = ("Convert", "Subtract", "Multiply", "Reshape")


def hidden_states(model: ov.Model, boundaries: Sequence[int]) -> TransformReport:
    """Add the output `boundary_states` f32 `[rows, sum of hidden sizes]`.

    Boundary b is the residual stream after b layers: 0 is the embedding, N of N layers what the final norm
    reads; N + 1 is what the output layer reads. The input `hidden_rows` i64 `[rows]` says of which rows of
    the pass.

    Args:
        model: paged, before attention is routed.
        boundaries: in the order in which their states are joined; one may come twice.

    Raises:
        ValueError: a boundary that the model does not have, or a layer whose residual stream is not found.
    """
    layers = decoder_layers(model)
    wrong = next((boundary for boundary in boundaries if not 0 <= boundary <= len(layers) + 1), None)
    if wrong is not None:
        raise ValueError(
            f"boundary {wrong}: the model has {len(layers)} layers, and boundaries 0 to {len(layers) + 1}"
        )
    rows = add_parameter(model, HIDDEN_ROWS, [-1], ov.Type.i64)
    states = []
    for boundary in boundaries:
        state = boundary_output(model, layers, boundary)
        size = state.get_partial_shape()[-1].get_length()
        flat = ops.reshape(state, i64([-1, size]), special_zero=False)
        states.append(ops.convert(ops.gather(flat, rows, i64(0)), "f32"))
    add_output(model, ops.concat(states, 1), BOUNDARY_STATES)
    model.validate_nodes_and_infer_types()
    return TransformReport("hidden_states", tuple(f"boundary {boundary}" for boundary in boundaries))


def decoder_layers(model: ov.Model) -> list[ov.Node]:
    """The node of every layer of a paged model that mixes tokens, in the layers' order.

    It attends to the text or keeps a state of it; a short convolution before such a state is no layer.
    """
    found = [node for node in model.get_ordered_ops() if node.get_type_name() in _MIXERS]
    if any(node.get_type_name() in (GATED_DELTA_NET, SELECTIVE_SSM) for node in found):
        return [node for node in found if node.get_type_name() != SHORT_CONVOLUTION]
    return found


def boundary_output(model: ov.Model, layers: Sequence[ov.Node], boundary: int) -> ov.Output:
    """The states of a boundary, as `hidden_states` numbers them, of all rows.

    Args:
        layers: of the model, as `decoder_layers`.

    Raises:
        ValueError: the residual stream there is not found.
    """
    if boundary > len(layers):
        return _all_rows(_head(model).input(0).get_source_output())
    if boundary == len(layers):
        return _residual(_head(model), boundary)
    values = [_value_projection(layer).get_name() for layer in layers[: boundary + 1]]
    if values[-1] in values[:-1]:
        raise ValueError(
            f"boundary {boundary}: layer {boundary} attends to the values of another, so that its residual "
            "stream is not found"
        )
    return _residual(_value_projection(layers[boundary]), boundary)


def token_embedding(model: ov.Model) -> ov.Node:
    """The Gather of a stateful model that looks up its embedding.

    Raises:
        ValueError: it looks up none.
    """
    for node in nodes_of_type(model, "Gather"):
        indices = node.input(1).get_source_output()
        while indices.get_node().get_type_name() == "Convert":
            indices = indices.get_node().input(0).get_source_output()
        if "input_ids" in indices.get_names() and _is_constant(source_node(node)):
            return node
    raise ValueError("the model looks up no embedding of its input_ids")


def _head(model: ov.Model) -> ov.Node:
    for result in model.get_results():
        if "logits" in result.input(0).get_source_output().get_names() and (head := lm_head(result)):
            return head
    raise ValueError("the model has no linear layer from its last hidden state to logits")


def _all_rows(state: ov.Output) -> ov.Output:
    """The rows of which the output layer reads some, where `gather_logits` chose them."""
    node = state.get_node()
    if node.get_type_name() != "Gather":
        return state
    indices = node.input(1).get_source_output()
    if SAMPLED_TOKENS_INDICES not in indices.get_names():
        return state
    return node.input(0).get_source_output()


def _value_projection(layer: ov.Node) -> ov.Node:
    """The linear layer that makes a layer's values; unlike queries and keys they are not rotated."""
    node = source_node(layer, _MIXERS[layer.get_type_name()])
    while node.get_type_name() != "MatMul":
        sources = [port.get_source_output().get_node() for port in node.inputs()]
        computed = [source for source in sources if not _is_constant(source)]
        if not computed:
            raise ValueError(f"layer {layer.get_friendly_name()}: its values are no linear layer")
        node = computed[0]
    return node


def _residual(reader: ov.Node, boundary: int) -> ov.Output:
    """The residual stream from which a linear layer reads, through a norm."""
    found: dict[str, ov.Output] = {}
    pending, seen = [reader.input(0).get_source_output()], set[str]()
    while pending:
        output = pending.pop()
        node = output.get_node()
        if node.get_name() in seen or _is_constant(node):
            continue
        seen.add(node.get_name())
        sources = [port.get_source_output() for port in node.inputs()]
        constant = [_is_constant(source.get_node()) for source in sources]
        if node.get_type_name() == "Add" and not any(constant):
            found[node.get_name()] = output
        elif node.get_type_name() == "Gather":
            if constant[0]:
                found[node.get_name()] = _scaled(output)
            else:
                pending.append(sources[0])
        else:
            pending += sources
    if len(found) != 1:
        raise ValueError(
            f"boundary {boundary}: {len(found)} residual streams lead to {reader.get_friendly_name()}, "
            "expected 1"
        )
    stream = next(iter(found.values()))
    if len(stream.get_partial_shape()) != 3:
        raise ValueError(f"boundary {boundary}: the model has several residual streams, expected 1")
    return stream


def _scaled(embedding: ov.Output) -> ov.Output:
    """An embedding as the first layer reads it: Gemma and others multiply it by a constant."""
    readers = list(embedding.get_target_inputs())
    node = readers[0].get_node()
    if len(readers) > 1 or node.get_type_name() not in ("Multiply", "Convert"):
        return embedding
    sources = [source_node(node, index) for index in range(node.get_input_size())]
    del sources[readers[0].get_index()]
    return _scaled(node.output(0)) if all(map(_is_constant, sources)) else embedding


def _is_constant(node: ov.Node) -> bool:
    """Whether a node is a weight: a constant, or its decompression."""
    if node.get_type_name() not in _DECOMPRESSION:
        return bool(node.get_type_name() == "Constant")
    return all(_is_constant(port.get_source_output().get_node()) for port in node.inputs())
