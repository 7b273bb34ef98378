"""Rows between a graph's operations as outputs of its own, for `RowProof`."""

from __future__ import annotations

import openvino as ov

from ovspec_transforms.graph import ancestors

_WRITES = ("CacheWrite", "PagedAttentionExtension")
_HEAVY = {"MatMul", "Linear", "GatedMLP", "SparseMoE", "VerifyAttention", *_WRITES}
_INTO = "rows into "


def watch_rows(graph: ov.Model, closely: str | None = None) -> list[str]:
    """Make the rows between operations results of a transformed graph; their names, in execution order.

    What the plugin fuses stays whole: rows are watched in front of and behind attention, linear layers,
    feed-forward parts and mixtures, and where residual sums go on.

    Args:
        graph: changed in place.
        closely: a name that an earlier call returned for another copy of the graph. Only that output is then
            watched, and every operation between it and the heavy ones before it.
    """
    outputs: dict[str, ov.Output] = {}
    routed = any(node.get_type_name() == "VerifyAttention" for node in graph.get_ops())
    attention = 0
    for node in graph.get_ordered_ops():
        if node.get_type_name() not in _HEAVY:
            continue
        name = node.get_friendly_name()
        for port in node.inputs()[:1]:
            _watch(outputs, port.get_source_output(), _INTO + name)
        # Before our attention these only write keys and values; their output is nothing.
        if routed and node.get_type_name() in _WRITES:
            continue
        if "Attention" in node.get_type_name():  # its name is a number that says nothing
            name, attention = f"{node.get_type_name()} of layer {attention}", attention + 1
        for index, output in enumerate(node.outputs()):
            _watch(outputs, output, name + (f" output {index}" if index else ""))
    if closely is not None:
        outputs = _between(graph, outputs, closely)
    for name, output in outputs.items():
        output.add_names({name})
    graph.add_results([ov.op.Result(output) for output in outputs.values()])
    return list(outputs)


def is_between(name: str) -> bool:
    """Whether a name of `watch_rows` says what goes into a heavy operation, and not what computed it."""
    return name.startswith(_INTO)


def _between(graph: ov.Model, outputs: dict[str, ov.Output], name: str) -> dict[str, ov.Output]:
    """The rows that lead to an output, from the heavy operations before it on."""
    before = {node.get_name() for node in ancestors(outputs[name].get_node(), _HEAVY)}
    found: dict[str, ov.Output] = {}
    for node in graph.get_ordered_ops():
        if node.get_name() in before:
            _watch(found, node.output(0), f"{node.get_type_name()} {node.get_friendly_name()}")
    return found


def _watch(outputs: dict[str, ov.Output], output: ov.Output, name: str) -> None:
    node, shape = output.get_node(), output.get_partial_shape()
    known = any(o.get_node() == node and o.get_index() == output.get_index() for o in outputs.values())
    floats = output.get_element_type().is_real()
    if known or not floats or node.get_type_name() in ("Parameter", "Constant") or shape.rank.is_dynamic:
        return
    if len(shape) >= 2 and shape[0].is_dynamic:
        outputs[name] = output
