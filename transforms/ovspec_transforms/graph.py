"""Small things that every transform needs: parameters, constants, nodes of a type."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.report import TransformReport

PAGED_ATTENTION = "PagedAttentionExtension"
GATED_DELTA_NET = "PagedGatedDeltaNet"
SELECTIVE_SSM = "PagedSelectiveSSM"
SHORT_CONVOLUTION = "PagedCausalConv1D"


def add_parameter(model: ov.Model, name: str, shape: Sequence[int], dtype: ov.Type) -> ov.Node:
    """Return the model's parameter `name`, added to the model if it has none yet.

    Several layers share one parameter, and transforms run in any order, so asking twice is normal.
    """
    if (known := find_input(model, name)) is not None:
        return known
    parameter = ops.parameter(ov.PartialShape(list(shape)), dtype, name=name)
    parameter.output(0).set_names({name})
    model.add_parameters([parameter])
    return parameter


def find_parameter(model: ov.Model, name: str) -> ov.Node:
    """Return the model's parameter called `name`.

    Raises:
        ValueError: the model has no such input; it is not a paged model then.
    """
    if (known := find_input(model, name)) is None:
        raise ValueError(f"the model has no input {name!r}: run to_paged(model) first")
    return known


def remove_unread(model: ov.Model) -> list[ov.Output]:
    """Remove the parameters that no node reads; what they were."""
    unread = [node for node in model.get_parameters() if not node.output(0).get_target_inputs()]
    for node in unread:
        model.remove_parameter(node)
    return [node.output(0) for node in unread]


def find_input(model: ov.Model, name: str) -> ov.Node | None:
    """The model's parameter called `name`, if it has one."""
    return next((node for node in model.get_parameters() if name in node.output(0).get_names()), None)


def add_output(model: ov.Model, node: ov.Node | ov.Output, name: str) -> None:
    """Return `node` from the model as its output `name`."""
    output = node if isinstance(node, ov.Output) else node.output(0)
    output.set_names({name})
    model.add_results([ops.result(output)])


def i32(value: int | Sequence[int]) -> ov.Node:
    """A constant of type i32."""
    return ops.constant(np.array(value, np.int32))


def i64(value: int | Sequence[int]) -> ov.Node:
    """A constant of type i64, for shapes and axes."""
    return ops.constant(np.array(value, np.int64))


def f32(value: float) -> ov.Node:
    """A constant of type f32."""
    return ops.constant(np.array(value, np.float32))


def nodes_of_type(model: ov.Model, type_name: str) -> list[ov.Node]:
    """All nodes of one operation type, in topological order."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() == type_name]


def source_node(node: ov.Node, position: int = 0) -> ov.Node:
    """The node behind one input."""
    return node.input(position).get_source_output().get_node()


def ancestors(node: ov.Node, ends: Container[str] = ()) -> Iterator[ov.Node]:
    """A node and what it is computed from, each once; nothing of the types `ends`, nor before these."""
    pending, seen = [node], set[str]()
    while pending:
        node = pending.pop()
        if node.get_name() not in seen and node.get_type_name() not in ends:
            seen.add(node.get_name())
            yield node
            pending += [port.get_source_output().get_node() for port in node.inputs()]


def let_read(output: ov.Output, other: ov.Output) -> None:
    """Let all that reads an output read another."""
    for port in list(output.get_target_inputs()):
        port.replace_source_output(other)


def evaluate(node: ov.Node) -> ov.Tensor | None:
    """The value of a node that depends on constants alone, else `None`.

    The stock transform takes a window out of the mask as it finds it: a constant, squeezed and negated.
    Folding the whole model instead would fold the decompression of its weights.
    """
    if node.get_type_name() == "Constant":
        return node.get_tensor_view()
    if node.get_output_partial_shape(0).is_dynamic:
        return None
    values = list[ov.Tensor]()
    for port in node.inputs():
        value = evaluate(port.get_source_output().get_node())
        if value is None:
            return None  # at once: each residual layer doubles the paths to the inputs, too many to follow
        values.append(value)
    if not values:
        return None
    result = ov.Tensor(node.get_output_element_type(0), node.get_output_shape(0))
    return result if node.evaluate([result], values) else None


def rewrite_nodes(
    model: ov.Model, name: str, type_name: str, rewrite: Callable[[ov.Node], bool]
) -> TransformReport:
    """Change the graph around the nodes of one type, infer its shapes again, and report it under `name`.

    Args:
        rewrite: called with each node, in topological order; returns whether it changed anything.
    """
    changed = [node.get_friendly_name() for node in nodes_of_type(model, type_name) if rewrite(node)]
    model.validate_nodes_and_infer_types()
    return TransformReport(name, tuple(changed))
