"""Rows between a graph's operations as outputs of its own, for `RowProof`."""

from __future__ import annotations

import openvino as ov


def watch_rows(graph: ov.Model) -> list[str]:
    """Make the rows between operations results of a transformed graph; their names, in execution order.

    What the plugin fuses stays whole: rows are watched in front of and behind attention, linear layers,
    feed-forward parts and mixtures, and where residual sums go on.
    """
    heavy = {"MatMul", "Linear", "GatedMLP", "SparseMoE", "PagedAttentionExtension", "VerifyAttention"}
    outputs: dict[str, ov.Output] = {}
    routed = any(node.get_type_name() == "VerifyAttention" for node in graph.get_ops())
    for node in graph.get_ordered_ops():
        if node.get_type_name() not in heavy:
            continue
        for port in node.inputs()[:1]:
            _watch(outputs, port.get_source_output(), "rows into " + node.get_friendly_name())
        # Beside ours the stock node only writes keys and values; its output is nothing.
        if not (routed and node.get_type_name() == "PagedAttentionExtension"):
            for index, output in enumerate(node.outputs()):
                _watch(outputs, output, f"{node.get_friendly_name()}" + (f" output {index}" if index else ""))
    results = []
    for name, output in outputs.items():
        result = ov.op.Result(output)
        output.add_names({name})
        results.append(result)
    graph.add_results(results)
    return list(outputs)


def _watch(outputs: dict[str, ov.Output], output: ov.Output, name: str) -> None:
    node, shape = output.get_node(), output.get_partial_shape()
    known = any(o.get_node() == node and o.get_index() == output.get_index() for o in outputs.values())
    floats = output.get_element_type().is_real()
    if known or not floats or node.get_type_name() in ("Parameter", "Constant") or shape.rank.is_dynamic:
        return
    if len(shape) >= 2 and shape[0].is_dynamic:
        outputs[name] = output
