"""Long RoPE: each row chooses its rotary frequencies by its own text, not by the whole pass."""

from __future__ import annotations

import openvino as ov
from openvino import opset15 as ops

from ovspec_transforms.graph import add_parameter, evaluate, nodes_of_type, source_node
from ovspec_transforms.report import TransformReport

ROPE_LENGTHS = "rope_lengths"


def rope_limit(model: ov.Model) -> int | None:
    """Length of text up to which a model uses its short rotary frequencies; `None`: no long ones.

    Call this before `split_long_rope`.
    """
    return next((_limit(node) for node in _comparisons(model)), None)


def split_long_rope(model: ov.Model) -> TransformReport:
    """Make every row choose its frequencies by the length of its text.

    As exported, a pass uses the long frequencies if any of its rows is past the limit. A text that is read in
    chunks, and texts that share a pass, would mix both kinds. Adds the input `rope_lengths` i32 `[rows]`.

    Raises:
        ValueError: the choice has an unknown form.
    """
    changed: list[str] = []
    for comparison in _comparisons(model):
        lengths = add_parameter(model, ROPE_LENGTHS, [-1], ov.Type.i32)
        # The axes after the rows are frequencies and positions.
        apart = ops.unsqueeze(lengths, ops.constant([1, 2], ov.Type.i64))
        is_long = ops.greater(apart, ops.constant(_limit(comparison), ov.Type.i32))
        # A port does not keep its node alive, and the Selects leave the graph here.
        for select in [port.get_node() for port in comparison.output(0).get_target_inputs()]:
            _choose_per_row(select, is_long)
            changed.append(select.get_friendly_name())
    model.validate_nodes_and_infer_types()
    return TransformReport("split_long_rope", tuple(changed))


def _comparisons(model: ov.Model) -> list[ov.Node]:
    """The nodes that compare the largest position of a pass with a limit."""
    found = []
    for node in nodes_of_type(model, "Greater"):
        count = source_node(node)
        largest = source_node(count) if count.get_type_name() == "Add" else count
        if largest.get_type_name() != "ReduceMax":
            continue
        source = source_node(largest)
        while source.get_type_name() in ("Unsqueeze", "Convert", "Reshape"):
            source = source_node(source)
        if source.get_type_name() == "Parameter" and "position_ids" in source.output(0).get_names():
            found.append(node)
    return found


def _limit(comparison: ov.Node) -> int:
    limit = evaluate(source_node(comparison, 1))
    if limit is None or limit.get_size() != 1:
        raise ValueError(_unknown(comparison))
    return int(limit.data.reshape(-1)[0])


def _choose_per_row(select: ov.Node, is_long: ov.Node) -> None:
    """Replace the frequencies of a Select for the whole pass, `[1, N, 1]`, by `[rows, N, 1]`."""
    if select.get_type_name() != "Select":
        raise ValueError(_unknown(select))
    user = _product(select)
    if user is None:
        raise ValueError(_unknown(select))
    users = list(select.output(0).get_target_inputs())
    both = []
    for branch in (1, 2):
        for port in users:
            port.replace_source_output(select.input(branch).get_source_output())
        value = evaluate(source_node(user))
        if value is None:
            raise ValueError(_unknown(select))
        both.append(ops.constant(value.data))
    user.input(0).replace_source_output(ops.select(is_long, *both).output(0))


def _product(select: ov.Node) -> ov.Node | None:
    """The product of frequencies and positions behind a Select."""
    node = select
    while node.get_type_name() != "MatMul":
        users = list(node.output(0).get_target_inputs())
        if len(users) != 1:
            return None
        node = users[0].get_node()
    return node


def _unknown(node: ov.Node) -> str:
    return (
        f"{node.get_friendly_name()} chooses rotary frequencies by the longest text of a pass in a form that "
        "is not known; this model can't be served"
    )
