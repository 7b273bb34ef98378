"""Positions of rotary embeddings, taken from the input that says them."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import ancestors, find_input, i64, let_read, nodes_of_type, source_node

POSITION_IDS = "position_ids"
_COUNTED = "counted_positions"
_WITH_AXES = 3


def read_positions(model: ov.Model) -> None:
    """Let rotary embeddings read the input `position_ids` where nothing does.

    Models with recurrent layers, as optimum-intel exports them, count positions from the tokens in the cache;
    Qwen3.5 counts them once for the text and for each of two axes of images. OpenVINO's transform puts the
    rows of all sequences on one axis, where that count is wrong.

    Args:
        model: stateful, as it was exported; other models are left as they are.
    """
    positions = find_input(model, POSITION_IDS)
    if positions is not None and positions.output(0).get_target_inputs():
        return
    found = [_counted_positions(node) for cosine in nodes_of_type(model, "Cos") for node in ancestors(cosine)]
    counts = [counted for counted in found if counted is not None]
    if not counts:
        return
    if positions is None:
        # OpenVINO's transform makes the input itself; `join_positions` puts it in the place of this one.
        positions = ops.parameter([-1, -1], ov.Type.i64, _COUNTED)
        positions.output(0).set_names({_COUNTED})
        model.add_parameters([positions])
    for counted in counts:
        given = ops.convert(positions, counted.get_element_type())
        shape = counted.get_partial_shape()
        if len(shape) == _WITH_AXES:
            axes = shape[0].get_length()
            given = ops.tile(ops.unsqueeze(given, i64(0)), i64([axes, 1, 1]))
        let_read(counted, given.output(0))
    model.validate_nodes_and_infer_types()


def join_positions(model: ov.Model) -> None:
    """Let what `read_positions` found read the input that OpenVINO's transform has made."""
    own, made = find_input(model, _COUNTED), find_input(model, POSITION_IDS)
    if own is not None and made is not None:
        let_read(own.output(0), ops.unsqueeze(made, i64(1)).output(0))
        model.remove_parameter(own)
        model.validate_nodes_and_infer_types()


def _counted_positions(node: ov.Node) -> ov.Output | None:
    """Integers that a node turns into floats, to multiply frequencies with them.

    Returns:
        `[batch, tokens]`, or with axes before them.
    """
    if node.get_type_name() != "Convert" or source_node(node).get_type_name() != "Unsqueeze":
        return None
    found = source_node(node).input(0).get_source_output()
    shape, made = found.get_partial_shape(), node.get_output_element_type(0)
    if not found.get_element_type().is_integral() or made.is_integral() or shape.rank.is_dynamic:
        return None
    has_axes = len(shape) == _WITH_AXES and shape[0].is_static
    return found if has_axes or len(shape) == _WITH_AXES - 1 else None
