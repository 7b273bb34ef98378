"""Layers that a pass leaves out: the target drafts with the others (Draft & Verify, arXiv 2309.08168)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.paged_cache import paged_layers
from ovspec_transforms.graph import add_parameter, i32, i64
from ovspec_transforms.heads.hidden_states import boundary_output, decoder_layers
from ovspec_transforms.report import TransformReport

COMPUTED_LAYERS = "computed_layers"
GIVEN_STATES = "given_states"

_END = np.iinfo(np.int64).max


def skip_layers(model: ov.Model) -> TransformReport:
    """Let every pass say which layers compute its rows; the others hand on what they got.

    Adds the inputs `computed_layers` i32 `[layers]`, 0 for a layer that is left out, and `given_states` f32
    `[rows, 1, hidden size]`, which take the place of the embeddings of the first rows, as many as there are.
    In the graph a layer that is left out is computed and not read; `join_layers` leaves out its steps.

    Args:
        model: paged, behind `hidden_states`.

    Raises:
        ValueError: a layer whose residual stream is not found, or that keeps a state.
    """
    layers, nodes = paged_layers(model), decoder_layers(model)
    if len(nodes) > len(layers):
        raise ValueError(
            f"drafter='layer_skip': {len(nodes) - len(layers)} layers of the model have linear attention, "
            "whose state a row that passes them by would lack; take another drafter"
        )
    streams = [boundary_output(model, nodes, boundary) for boundary in range(len(layers) + 1)]
    readers = [list(stream.get_target_inputs()) for stream in streams]
    size = streams[0].get_partial_shape()[-1].get_length()
    computed = add_parameter(model, COMPUTED_LAYERS, [len(layers)], ov.Type.i32)
    given = add_parameter(model, GIVEN_STATES, [-1, 1, size], ov.Type.f32)
    number = ops.gather(ops.shape_of(given), i64([0]), i64(0))
    rest = ops.slice(streams[0], number, i64([_END]), i64([1]), i64([0]))
    before = ops.concat([ops.convert_like(given, streams[0]), rest], 0).output(0)
    for layer, behind in enumerate(streams[1:]):
        _redirect(readers[layer], before)
        is_computed = ops.not_equal(ops.gather(computed, i64(layer), i64(0)), i32(0))
        before = ops.select(is_computed, behind, before).output(0)
    _redirect(readers[-1], before)
    model.validate_nodes_and_infer_types()
    return TransformReport("skip_layers", tuple(layer.name for layer in layers))


def _redirect(readers: Iterable[ov.Input], output: ov.Output) -> None:
    for port in readers:
        port.replace_source_output(output)
