"""Positions of rotary embeddings, taken from the input that says them."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import ancestors, i64, let_read, nodes_of_type, source_node

POSITION_IDS = "position_ids"


def read_positions(model: ov.Model) -> None:
    """Let rotary embeddings read the input `position_ids` where nothing does.

    Qwen3.5 as optimum-intel exports it counts positions from the tokens in the cache, once for the text and
    for each of two axes of images. OpenVINO's pass puts the rows of all sequences on one axis, where that
    count is wrong.

    Args:
        model: stateful, as it was exported; other models are left as they are.
    """
    positions = next((node for node in model.get_parameters() if _is_called(node, POSITION_IDS)), None)
    if positions is None or positions.output(0).get_target_inputs():
        return
    for cosine in nodes_of_type(model, "Cos"):
        for node in ancestors(cosine):
            counted = _counted_positions(node)
            if counted is None:
                continue
            axes = counted.get_partial_shape()[0].get_length()
            given = ops.tile(ops.unsqueeze(positions, i64(0)), i64([axes, 1, 1]))
            let_read(counted, ops.convert(given, counted.get_element_type()).output(0))
    model.validate_nodes_and_infer_types()


def _counted_positions(node: ov.Node) -> ov.Output | None:
    """Integers `[axes, batch, tokens]` that a node turns into floats, to multiply frequencies with them."""
    if node.get_type_name() != "Convert" or source_node(node).get_type_name() != "Unsqueeze":
        return None
    found = source_node(node).input(0).get_source_output()
    shape, made = found.get_partial_shape(), node.get_output_element_type(0)
    if not found.get_element_type().is_integral() or made.is_integral() or shape.rank.is_dynamic:
        return None
    return found if len(shape) == 3 and shape[0].is_static else None


def _is_called(parameter: ov.Node, name: str) -> bool:
    return name in parameter.output(0).get_names()
