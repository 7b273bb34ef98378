"""Layers that get no rows: the target drafts with some of its own (Draft & Verify, arXiv 2309.08168)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.paged_cache import paged_layers
from ovspec_transforms.graph import add_parameter, ancestors, find_parameter, i64
from ovspec_transforms.heads.hidden_states import boundary_output, decoder_layers
from ovspec_transforms.report import TransformReport

LAYER_ROWS = "layer_rows"
GIVEN_STATES = "given_states"

_END = np.iinfo(np.int64).max


def skip_layers(model: ov.Model) -> TransformReport:
    """Let every pass say how many of its rows each layer computes; the others skip the layer.

    Adds the inputs `layer_rows` i64 `[layers]` (the first so many rows go through a layer; OpenVINO leaves
    out what gets none) and `given_states` f32 `[rows, 1, hidden size]`, which take the place of the
    embeddings of the first rows, as many as there are.

    Args:
        model: paged, behind `hidden_states`, before attention is routed.

    Raises:
        ValueError: a layer whose residual stream is not found, that reads the number of rows itself, or that
            keeps a state.
    """
    layers, nodes = paged_layers(model), decoder_layers(model)
    if len(nodes) > len(layers):
        raise ValueError(
            f"drafter='layer_skip': {len(nodes) - len(layers)} layers of the model have linear attention, "
            "whose state a row that passes them by would lack; take another drafter"
        )
    streams = [boundary_output(model, nodes, boundary) for boundary in range(len(layers) + 1)]
    size = streams[0].get_partial_shape()[-1].get_length()
    counts = add_parameter(model, LAYER_ROWS, [len(layers)], ov.Type.i64)
    given = add_parameter(model, GIVEN_STATES, [-1, 1, size], ov.Type.f32)
    bodies = [_body(*ends) for ends in pairwise(streams)]
    readers = [list(stream.get_target_inputs()) for stream in streams]
    number = ops.gather(ops.shape_of(given), i64([0]), i64(0))
    now = ops.concat([ops.convert_like(given, streams[0]), _rows(streams[0], number, i64([_END]))], 0)
    for layer, count in enumerate(ops.split(counts, i64(0), len(layers)).outputs()):
        passing = now.output(0)
        _cut_others(layers[layer].name, bodies[layer], streams[layer], count)
        _redirect(readers[layer], bodies[layer], _rows(passing, i64([0]), count), passing)
        now = ops.concat([streams[layer + 1], _rows(passing, count, i64([_END]))], 0)
    _redirect(readers[-1], {}, now.output(0), now.output(0))
    model.validate_nodes_and_infer_types()
    return TransformReport("skip_layers", tuple(layer.name for layer in layers))


def cut_attention(model: ov.Model) -> TransformReport:
    """Cut what the stock attention of every layer returns to the rows that it was given.

    OpenVINO leaves the node out where it gets none, and its output keeps the shape of the pass before.

    Args:
        model: behind `skip_layers`, and behind what else reads that output.
    """
    layers, counts = paged_layers(model), find_parameter(model, LAYER_ROWS)
    for number, layer in enumerate(layers):
        output = layer.node.output(0)
        readers = list(output.get_target_inputs())
        rows = _rows(output, i64([0]), ops.gather(counts, i64([number]), i64(0)))
        _redirect(readers, {}, rows, rows)
    model.validate_nodes_and_infer_types()
    return TransformReport("cut_attention", tuple(layer.name for layer in layers))


def _rows(states: ov.Output, begin: ov.Output | ov.Node, end: ov.Output | ov.Node) -> ov.Output:
    return ops.slice(states, begin, end, i64([1]), i64([0])).output(0)


def _redirect(
    readers: list[ov.Input], body: dict[str, ov.Node], inside: ov.Output, outside: ov.Output
) -> None:
    """Let the nodes of a layer read one output, all others another."""
    for port in readers:
        port.replace_source_output(inside if port.get_node().get_name() in body else outside)


def _body(begin: ov.Output, end: ov.Output) -> dict[str, ov.Node]:
    """The nodes on the ways from one boundary to the next, by name."""
    first, found = begin.get_node().get_name(), dict[str, bool]()
    nodes, pending = dict[str, ov.Node](), [end.get_node()]
    while pending:
        node = pending[-1]
        sources = [port.get_source_output().get_node() for port in node.inputs()]
        ahead = [s for s in sources if s.get_name() not in found and s.get_name() != first]
        if ahead:
            pending += ahead
            continue
        pending.pop()
        names = [source.get_name() for source in sources]
        found[node.get_name()] = any(name == first or found[name] for name in names)
        if found[node.get_name()]:
            nodes[node.get_name()] = node
    return nodes


def _cut_others(layer: str, body: dict[str, ov.Node], begin: ov.Output, count: ov.Output) -> None:
    """Cut what a layer reads of its rows beside the residual stream, such as their rotations."""
    cut: dict[tuple[str, int], ov.Output] = {}
    for node in body.values():
        for port in node.inputs():
            source = port.get_source_output()
            above = source.get_node()
            key = above.get_name(), source.get_index()
            stream = begin.get_node().get_name(), begin.get_index()
            if above.get_name() in body or key == stream or not _is_computed(above):
                continue
            shape = source.get_partial_shape()
            if shape.is_static or shape[0].is_static:
                raise ValueError(
                    f"layer {layer}: {node.get_friendly_name()} reads {above.get_friendly_name()} of shape "
                    f"{shape}, which is not of its rows: this model's layers can't be skipped"
                )
            if key not in cut:
                cut[key] = _rows(source, i64([0]), count)
            port.replace_source_output(cut[key])


def _is_computed(node: ov.Node) -> bool:
    """Whether a node depends on an input of the model, and is none itself."""
    if node.get_type_name() == "Parameter":
        return False
    return any(source.get_type_name() == "Parameter" for source in ancestors(node))
