"""The parts of a head that has a cache, and what it shares with its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_transforms.graph import evaluate, find_parameter, i64
from ovspec_transforms.heads.gather_logits import lm_head
from ovspec_transforms.heads.hidden_states import token_embedding

#: Input of heads that draft blocks: which rows of a pass are a block's, i64 `[block rows]`.
BLOCK_ROWS = "block_rows"
_STATES, _D2T, _MASK = "hidden_states", "d2t", "mask_hidden"
# What norms before `fc`, of all states or of every boundary's, consist of.
_OF_NORMS = (
    *("Convert", "Power", "Multiply", "ReduceMean", "Add", "Sqrt", "Divide"),
    *("Split", "VariadicSplit", "Slice", "StridedSlice", "Concat"),
)


@dataclass(frozen=True, slots=True)
class HeadParts:
    """One head, cut after its first linear layer where only the target's states pass it.

    Attributes:
        fc: joins the target's states, `[1, rows, sum of hidden sizes]`, to features `[1, rows, size]`;
            `None`: features are states.
        head: the stateful decoder; its input `hidden_states` takes features, its own as well as `fc`'s.
        offsets: i64 `[draft vocabulary]`, `d2t`: token i of the head is token i + d2t[i] of the target.
            `None`: the head has no such output.
        mask: f32 `[read]`, what stands for states that are not known yet, if it has the output `mask_hidden`.
        read: size of the states that it reads.
        size: of the features.
        embedded: size of the embeddings that the head reads.
        drafted: tokens in the head's vocabulary.
    """

    fc: ov.Model | None
    head: ov.Model
    offsets: NDArray[np.int64] | None
    mask: NDArray[np.float32] | None
    read: int
    size: int
    embedded: int
    drafted: int


def split_head(model: ov.Model) -> HeadParts:
    """Cut a head, in place. `fc` reads states of the target only, the rest is run for every draft token.

    Raises:
        ValueError: the model has no such layer, embedding or logits.
    """
    given = find_parameter(model, _STATES)
    fc = _reader(given)
    joined = fc.output(0)
    size = joined.get_partial_shape()[-1].get_length()
    weight = fc.input(1).get_partial_shape()
    features = ops.parameter(ov.PartialShape([-1, -1, size]), ov.Type.f32, name="features")
    # Others than fc ask the states for their shape.
    others = [
        port for port in given.output(0).get_target_inputs() if "Shape" in port.get_node().get_type_name()
    ]
    for port in [*joined.get_target_inputs(), *others]:
        port.replace_source_output(features.output(0))
    offsets, mask = _take_constant(model, _D2T), _take_constant(model, _MASK)
    model.remove_parameter(given)
    features.output(0).set_names({_STATES})
    model.add_parameters([features])
    model.validate_nodes_and_infer_types()
    read = weight[1 if fc.get_attributes()["transpose_b"] else 0].get_length()
    return _parts(model, ov.Model([ops.result(joined)], [given], "fc"), offsets, mask, read, size)


def whole_head(model: ov.Model) -> HeadParts:
    """A head that reads one boundary's states as they are, and in a draft its own."""
    size = find_parameter(model, _STATES).output(0).get_partial_shape()[-1].get_length()
    return _parts(model, None, None, None, size, size)


def _parts(
    model: ov.Model,
    fc: ov.Model | None,
    offsets: NDArray[np.int64] | None,
    mask: NDArray[np.float32] | None,
    read: int,
    size: int,
) -> HeadParts:
    embedded = token_embedding(model).input(0).get_partial_shape()[-1].get_length()
    drafted = model.output("logits").get_partial_shape()[-1].get_length()
    return HeadParts(fc, model, offsets, mask, read, size, embedded, drafted)


def _reader(states: ov.Node) -> ov.Node:
    """The linear layer that alone reads the states, through norms or not."""
    found, pending, seen = list[ov.Node](), [states], set[str]()
    while pending:
        ports = [port for output in pending.pop().outputs() for port in output.get_target_inputs()]
        for node in [port.get_node() for port in ports]:
            if node.get_name() in seen or "Shape" in node.get_type_name():
                continue
            seen.add(node.get_name())
            if node.get_type_name() == "MatMul":
                found.append(node)
            elif node.get_type_name() in _OF_NORMS:
                pending.append(node)
    if len(found) != 1:
        raise ValueError(f"the head has {len(found)} linear layers over its hidden_states, expected 1 (fc)")
    return found[0]


def share_embedding(head: ov.Model, target: ov.Model) -> int:
    """Let a head look tokens up in the embedding of a target's stateful model; the size of its rows."""
    table = token_embedding(target).input(0).get_source_output()
    token_embedding(head).input(0).replace_source_output(table)
    return int(table.get_partial_shape()[-1].get_length())


def embedding_of(target: ov.Model) -> ov.Model:
    """The embedding of a target's stateful model: tokens i64 `[rows]` to f32 `[rows, size]`."""
    table = token_embedding(target).input(0).get_source_output()
    tokens = ops.parameter(ov.PartialShape([-1]), ov.Type.i64, name="input_ids")
    rows = ops.gather(table, tokens, ops.constant(0, ov.Type.i64))
    return ov.Model([ops.result(ops.convert(rows, "f32"))], [tokens], "embedding")


def share_output(head: ov.Model, target: ov.Model) -> int:
    """Let a head end with the output layer of a target's stateful model; the size of the states it reads.

    Raises:
        ValueError: the target's logits come from no linear layer.
    """
    own, theirs = (lm_head(model.output("logits").get_node()) for model in (head, target))
    if own is None or theirs is None:
        raise ValueError("the target has no linear layer from its last hidden state to logits")
    weight = theirs.input(1).get_source_output()
    if not theirs.get_attributes()["transpose_b"]:
        weight = ops.transpose(weight, i64([1, 0])).output(0)
    own.input(1).replace_source_output(weight)
    head.validate_nodes_and_infer_types()
    return int(weight.get_partial_shape()[1].get_length())


def _take_constant(model: ov.Model, name: str) -> NDArray[Any] | None:
    """Remove an output that is a constant; its value."""
    for result in model.get_results():
        source = result.input(0).get_source_output()
        if name in source.get_names():
            value = evaluate(source.get_node())
            if value is None:
                raise ValueError(f"the head computes its output {name}, expected a constant")
            found = np.array(value.data)
            model.remove_result(result)
            return found
    return None
