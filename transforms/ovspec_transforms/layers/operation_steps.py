"""Operations of ours as steps: each has the operands, outputs and settings of its operation."""

from __future__ import annotations

import openvino as ov

from ovspec_transforms.graph import source_node
from ovspec_transforms.layers.rows import Rows
from ovspec_transforms.layers.step import Cache, Operand, Port, Step, cache_type, number, own_rows

OPERATIONS = {
    "KeySummary": "key_summary",
    "BlockSelect": "block_select",
    "GatedMLP": "gated_mlp",
    "ExpertBudget": "expert_budget",
    "SparseMoE": "experts",
}
"""Names of their steps."""

_ROWS = {"KeySummary": (1,), "BlockSelect": (0,), "GatedMLP": (0,), "ExpertBudget": (1,), "SparseMoE": (0, 2)}


def operation_step(node: ov.Node) -> Step | None:
    """The step of an operation; `None` where its rows are none."""
    kind = node.get_type_name()
    attributes = {name: value for name, value in node.get_attributes().items() if name != "threads"}
    of_rows = _ROWS[kind] + ((1,) if attributes.get("gate_format") == "values" else ())
    operands: list[Operand] = []
    for position, port in enumerate(node.inputs()):
        if position in of_rows:
            rows = own_rows(port.get_source_output())
            if rows is None:
                return None
            operands.append(rows)
        else:
            operands.append(_port(node, position))
    outputs = [_made(output) for output in node.outputs()]
    return Step(OPERATIONS[kind], operands, outputs, attributes | cache_type(operands))


def _port(node: ov.Node, position: int) -> Port | None:
    """What stands behind an input; integers of a TopK without their conversions to others."""
    output = node.input(position).get_source_output()
    while output.get_node().get_type_name() == "Convert":
        output = output.get_node().input(0).get_source_output()
    if output.get_node().get_type_name() == "TopK":
        return Port(output.get_node().get_name(), output.get_index())
    return Cache.if_any(node, position)


def stack(node: ov.Node) -> Step | None:
    """Tables of one shape, one behind the other."""
    parts = [source_node(node, position) for position in range(node.get_input_size())]
    kinds = {part.get_type_name() for part in parts}
    if node.get_attributes()["axis"] != 0 or kinds != {"Unsqueeze"} or node.get_element_type() != ov.Type.i32:
        return None
    if any(number(part, 1) != 0 for part in parts):
        return None
    tables: list[Operand] = [Port.of(part, 0) for part in parts]
    return Step("stack", tables, [_made(node.output(0))])


def _made(output: ov.Output) -> Rows | Port:
    """Rows, or a table where an output holds none."""
    return own_rows(output) or Port(output.get_node().get_name(), output.get_index())
