"""Rows that pictures give, in the place of those of the text embedding."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.attention.rope_positions import POSITION_IDS
from ovspec_transforms.graph import add_parameter, find_input, i64
from ovspec_transforms.pictures.text_embedding import TEXT_ROWS
from ovspec_transforms.report import TransformReport

VISUAL_ROWS = "visual_rows"
ROWS_TAKEN = "rows_taken"
POSITION_AXES = "position_axes"
DEEP_ROWS = "deepstack_visual_embeds"


def visual_rows(model: ov.Model) -> TransformReport:
    """Let every row of a pass be that of its token, or one that a picture gives.

    Adds the inputs `visual_rows` f32 `[given, 1, hidden size]` and `rows_taken` i64 `[rows]`: for each row of
    the pass its place among the rows of the text embedding and the given ones behind them. Positions of
    several axes (time, height and width of pictures) are called `position_axes` i64 `[axes, rows]`. Where
    something is added to rows of pictures behind the first layers too, the shape of `deepstack_visual_embeds`
    says how many layers.

    Args:
        model: paged, of `join_text_embedding`; changed in place. Others are left as they are.
    """
    rows = next((o for node in model.get_ops() for o in node.outputs() if TEXT_ROWS in o.get_names()), None)
    if rows is None:
        return TransformReport("visual_rows", ())
    readers = list(rows.get_target_inputs())
    size = rows.get_partial_shape()[-1].get_length()
    given = add_parameter(model, VISUAL_ROWS, [-1, 1, size], ov.Type.f32)
    taken = add_parameter(model, ROWS_TAKEN, [-1], ov.Type.i64)
    every = ops.concat([rows, ops.convert_like(given, rows)], 0)
    chosen = ops.gather(every, taken, i64(0))
    for reader in readers:
        reader.replace_source_output(chosen.output(0))
    changed = [VISUAL_ROWS]
    positions = find_input(model, POSITION_IDS)
    if positions is not None and len(positions.get_output_partial_shape(0)) > 1:
        positions.output(0).set_names({POSITION_AXES})
        positions.set_friendly_name(POSITION_AXES)
        changed.append(POSITION_AXES)
    if (deep := find_input(model, DEEP_ROWS)) is not None:
        layers = len(deep.output(0).get_target_inputs())  # each reads its own
        deep.set_partial_shape(ov.PartialShape([layers, -1, size]))
        changed.append(DEEP_ROWS)
    model.validate_nodes_and_infer_types()
    return TransformReport("visual_rows", tuple(changed))
