"""A whole model as one operation: from token ids to the next ones, as often as a pass asks for."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import (
    add_output,
    add_parameter,
    ancestors,
    evaluate,
    find_parameter,
    source_node,
)
from ovspec_transforms.heads.gather_logits import SAMPLED_TOKENS_INDICES
from ovspec_transforms.layers.rows import Rows
from ovspec_transforms.layers.step import Cache, Operand, Port, Step
from ovspec_transforms.weights.expert_weights import (
    UnknownPatternError,
    shared_bytes,
    split_weights,
    zero_points_of,
)

#: Input i32 `[1 + runs]`: token ids from the first number on are not chosen, 0: none is; then the rows of
#: each run.
DRAFT_PLAN = "draft_plan"
#: Input u8 `[32 * sequences]`: how each draws its tokens, `ovspec_ops.decoder_layers.sampling`; empty where
#: all take the largest logit.
DRAFT_SAMPLING = "draft_sampling"
#: Output i32 `[runs, sampled rows]`: the token that each run has chosen for each row, -1 for none.
DRAFT_TOKENS = "draft_tokens"
_NUMBERS = {ov.Type.f32: 4, ov.Type.f16: 2, ov.Type.bf16: 2}
_INTEGERS = (ov.Type.u8, ov.Type.i8)
_SHAPED = ("Convert", "Reshape", "Squeeze", "Unsqueeze")


def with_drafts(model: ov.Model, stretches: list[list[Step]]) -> list[list[Step]]:
    """Join the stretches of a whole model with its embedding and with the choice of tokens: it can draft.

    Adds the inputs `draft_plan` and `draft_sampling`, and the output `draft_tokens`; rows of `cos` and `sin`,
    slots and positions are then those of all runs. A model with anything else between token ids and logits
    than two stretches and the choice of the sampled rows is left as it is.

    Args:
        model: changed in place.
        stretches: all that there are.
    """
    sampled, results = _sampled(model), model.get_results()
    if len(stretches) != 2 or sampled is None or len(results) != 1:
        return stretches
    layers, output = stretches
    rows, taken = Rows.of(sampled.input(0).get_source_output()), Rows.of(sampled.output(0))
    logits = Rows.of(results[0].input(0).get_source_output())
    made, last = _made(layers), _made(output)
    if rows not in made or logits not in last or not _read(output) - last <= {taken}:
        return stretches
    inputs = _inputs(model, layers, _read(layers) - made)
    if inputs is None or rows is None or taken is None:
        return stretches
    embedding, slots, tables = inputs
    plan = add_parameter(model, DRAFT_PLAN, [-1], ov.Type.i32)
    sampling = add_parameter(model, DRAFT_SAMPLING, [-1], ov.Type.u8)
    chosen = ops.parameter([-1, -1], ov.Type.i32)  # stands for what no node computes
    add_output(model, chosen, DRAFT_TOKENS)
    take = Step("take", [rows, _of_32_bits(source_node(sampled, 1))], [taken], node=sampled.get_name())
    given = [Port(one.get_name(), 0) for one in (plan, sampling)]
    operands: list[Operand] = [logits, *given, slots, tables]
    choose = Step("choose", operands, [Port(chosen.get_name(), 0)], node=chosen.get_name())
    return [[embedding, *layers, take, *output, choose]]


def _of_32_bits(parameter: ov.Node) -> Port:
    """An input of integers, which the operation reads as they are: the plugin would convert them."""
    parameter.set_element_type(ov.Type.i32)
    parameter.constructor_validate_and_infer_types()
    return Port(parameter.get_name(), 0)


def _made(steps: Iterable[Step]) -> set[Rows | Port]:
    return {made for step in steps for made in step.outputs}


def _read(steps: Iterable[Step]) -> set[Rows | Port]:
    """What steps read, caches aside."""
    return {read for step in steps for read in step.reads if not isinstance(read, Cache)}


def _sampled(model: ov.Model) -> ov.Node | None:
    """The Gather of the sampled rows."""
    ports = list(find_parameter(model, SAMPLED_TOKENS_INDICES).output(0).get_target_inputs())
    node = ports[0].get_node() if len(ports) == 1 else None
    return node if node is not None and node.get_type_name() == "Gather" else None


def _inputs(model: ov.Model, layers: list[Step], read: set[Rows | Port]) -> tuple[Step, Port, Port] | None:
    """The embedding, slots and tables, where layers read nothing else but constants, cos and sin."""
    nodes = {node.get_name(): node for node in model.get_ordered_ops()}
    slots = {step.operands[4] for step in layers if step.name == "cache_write"}
    tables = {step.operands[4] for step in layers if step.name == "attention"}
    ports = [port for port in read if isinstance(port, Port)]
    given = {port for port in ports if nodes[port.node].get_type_name() != "Constant"}
    if len(slots) != 1 or len(tables) != 1 or given != slots | tables:
        return None
    rows = [rows for rows in read if isinstance(rows, Rows)]
    angles = [one for one in rows if _is_of_positions(nodes[one.node])]
    others = [one for one in rows if one not in angles]
    (slot,), (table,) = slots, tables
    if not angles or len(others) != 1 or not isinstance(slot, Port) or not isinstance(table, Port):
        return None
    try:
        return _embedding(nodes[others[0].node], others[0]), slot, table
    except UnknownPatternError:
        return None


def _is_of_positions(node: ov.Node) -> bool:
    """Whether a node depends on no other input of the model."""
    found = [one for one in ancestors(node) if one.get_type_name() == "Parameter"]
    return all("position_ids" in one.output(0).get_names() for one in found)


def _embedding(gather: ov.Node, rows: Rows) -> Step:
    """The step that looks up the rows of `input_ids`; its weights stay where they are.

    Raises:
        UnknownPatternError: no Gather of rows, or weights of another form.
    """
    ids = source_node(gather, 1) if gather.get_type_name() == "Gather" else gather
    while ids.get_type_name() in _SHAPED:
        ids = source_node(ids)
    table = gather.input(0).get_partial_shape() if gather.get_input_size() else ov.PartialShape.dynamic()
    if ids.get_type_name() != "Parameter" or not table.is_static or len(table) != 2:
        raise UnknownPatternError(f"{gather.get_friendly_name()} looks up no embedding")
    axis = evaluate(source_node(gather, 2))
    if axis is None or axis.data.item() != 0 or "input_ids" not in ids.output(0).get_names():
        raise UnknownPatternError(f"{gather.get_friendly_name()} looks up no rows of input_ids")
    count, width = (int(size.get_length()) for size in table)
    data, zero_point, scale = split_weights(source_node(gather), "an embedding")
    dtype = data.get_element_type()
    settings: dict[str, object] = {"format": dtype.get_type_name(), "ids": count}
    operands = list[Operand]()
    if scale is None and dtype in _NUMBERS:
        data = shared_bytes(data, (count, width * _NUMBERS[dtype]))
    elif scale is not None and dtype in _INTEGERS and scale.get_element_type() == ov.Type.f16:
        groups = math.prod(scale.get_output_shape(0)) // count
        zeros = zero_points_of(dtype, zero_point, (count, groups), "an embedding")
        settings["groups"] = groups
        operands = [np.array(scale.data).ravel(), zeros.ravel()]
        data = shared_bytes(data, (count, width))
    else:
        raise UnknownPatternError(f"an embedding is of type {dtype.get_type_name()}")
    # The program finds it there; the Gather itself goes.
    gather.input(0).replace_source_output(data.output(0))
    operands = [_of_32_bits(ids), Port.of(gather, 0), *operands]
    return Step("embedding", operands, [rows], settings, gather.get_name())
