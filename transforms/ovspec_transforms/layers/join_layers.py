"""Stretches of decoder layers become one operation each."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

import ovspec_ops
from ovspec_transforms.graph import add_parameter, let_read
from ovspec_transforms.layers.draft_steps import with_drafts
from ovspec_transforms.layers.rows import Rows, angles, chosen_rows, pass_rows
from ovspec_transforms.layers.step import Cache, Operand, Port, Step
from ovspec_transforms.layers.steps import step_of
from ovspec_transforms.report import TransformReport
from ovspec_transforms.weights.weight_memory import WeightMemory, slab_of

DECODER_LAYERS = "DecoderLayers"
CACHE_TABLE = "cache_table"
_VERSION = "ovspec layers 1"
# A norm alone is joined too: it has other bits in the plugin, and graphs that skip layers must have the same.
_HEAVY = ("linear", "attention", "gated_mlp", "experts", "rms", "layer_norm")

Outputs = dict[tuple[str, int], ov.Output]
"""Outputs of a graph by node and index."""


def join_layers(model: ov.Model, drafts: bool = False) -> TransformReport:
    """Replace every stretch of whole layers whose nodes are known by one `DecoderLayers`.

    Adds the input `cache_table` u8 `[8 * (1 + entries)]`, numbers of 64 bits, where caches are read by their
    addresses: the number of blocks of each cache, then the address of `key_cache.N` at entry 3 N, and of
    `value_cache.N` and `key_summary.N` behind it. `remove_addressed` takes these out of the model's inputs.

    Args:
        model: behind all other transforms, and changed in place.
        drafts: whether a model whose nodes are all known becomes one operation, as `with_drafts`.
    """
    found, changed = _stretches(model), list[str]()
    if drafts:
        needed, _ = _needed(model, found, _outputs(model))
        used = [[step for step in steps if step.node in needed] for steps in found]
        found = with_drafts(model, [steps for steps in used if steps])
    if any(step.name == "attention" for steps in found for step in steps):
        # An operation costs more than the few small nodes between two others.
        stretches = [steps for steps in found if any(step.name in _HEAVY for step in steps)]
        changed = _replace(model, stretches)
    model.validate_nodes_and_infer_types()
    return TransformReport("JoinLayers", tuple(changed))


def _stretches(model: ov.Model) -> list[list[Step]]:
    """Steps that follow each other without any other node between them, in the order of the graph."""
    made: dict[Rows | Port, tuple[int, str]] = {}  # stretch of what a step computes
    levels: dict[str, int] = {}  # of a node: the last stretch that it depends on
    # By their place, and by who chose the rows: an operation computes the same rows in all of its steps.
    stretches: dict[tuple[int, str], list[Step]] = {}
    of_pass, of_positions, chosen = pass_rows(model), angles(model), chosen_rows(model)
    for node in model.get_ordered_ops():
        before = [levels[port.get_source_output().get_node().get_name()] for port in node.inputs()]
        levels[node.get_name()] = max(before, default=0)
        if node.get_name() in of_positions or (step := step_of(node)) is None:
            continue
        if not _reads_the_pass(step, of_pass):
            continue
        number, by = 1, chosen[node.get_name()]
        for read in step.reads:
            before_it, chosen_by = made.get(read, (levels[read.node], ""))
            # Of two operations at one place, each could read what the other computes.
            number = max(number, before_it if read in made and chosen_by == by else before_it + 1)
        levels[node.get_name()] = number
        made |= dict.fromkeys(step.outputs, (number, by))
        stretches.setdefault((number, by), []).append(step)
        if step.name == "either":
            _leave_out(step, stretches[number, by])
    return [stretches[number] for number in sorted(stretches)]


def _leave_out(either: Step, steps: Sequence[Step]) -> None:
    """Give the steps that lead from the second rows of an `either` to its first ones its condition."""
    first, second = either.operands
    begun, behind = {second}, list[Step]()
    for step in steps:
        if begun.intersection(step.reads) and step is not either:
            begun.update(step.outputs)
            behind.append(step)
    needed = {first}
    for step in reversed(behind):
        if needed.intersection(step.outputs):
            needed.update(step.reads)
            step.condition = either.condition


def _reads_the_pass(step: Step, of_pass: Container[tuple[str, int]]) -> bool:
    """Whether all rows of a step are those of the pass."""
    every = [rows for rows in (*step.reads, *step.outputs) if isinstance(rows, Rows) and rows.width]
    return all((rows.node, rows.index) in of_pass for rows in every)


def _replace(model: ov.Model, stretches: list[list[Step]]) -> list[str]:
    """Put one operation in the place of the steps of each stretch; their nodes."""
    outputs = _outputs(model)
    if any(isinstance(read, Cache) for steps in stretches for step in steps for read in step.reads):
        outputs[CACHE_TABLE, 0] = add_parameter(model, CACHE_TABLE, [-1], ov.Type.u8).output(0)
    needed, wanted = _needed(model, stretches, outputs)
    memory, changed = WeightMemory(), list[str]()
    for every in stretches:
        if steps := [step for step in every if step.node in needed]:
            results = [made for step in steps for made in step.outputs if (made.node, made.index) in wanted]
            _replace_stretch(steps, results, outputs, memory)
            changed += [step.node for step in steps]
    return changed


def _outputs(model: ov.Model) -> Outputs:
    return {(node.get_name(), o.get_index()): o for node in model.get_ops() for o in node.outputs()}


def _replace_stretch(
    steps: list[Step], results: Sequence[Rows | Port], outputs: Outputs, memory: WeightMemory
) -> None:
    """Put one operation in the place of steps.

    Args:
        results: what others read of what they compute.
        outputs: those of the operation take the place of the steps'.
    """
    operation = _Program(steps, outputs, memory).operation(results)
    operation.set_friendly_name(f"{steps[0].node}/{DECODER_LAYERS}")
    for index, made in enumerate(results):
        output, new = outputs[made.node, made.index], operation.output(index)
        # The next operation reads it as it is: in bf16 the plugin rounds what it reshapes.
        outputs[made.node, made.index] = new
        if isinstance(made, Rows) and len(output.get_partial_shape()) > 2:
            sizes = [size.get_length() for size in list(output.get_partial_shape())[1:]]
            new = ops.reshape(new, ops.constant(np.array([-1, *sizes], np.int64)), False).output(0)
        if new.get_element_type() != output.get_element_type():
            new = ops.convert(new, output.get_element_type()).output(0)
        new.add_names(output.get_names())
        let_read(output, new)


def _needed(
    model: ov.Model, stretches: list[list[Step]], outputs: Outputs
) -> tuple[set[str], set[tuple[str, int]]]:
    """What leads to the model's results: nodes, and the outputs of steps that others than their stretch read.

    A step reads what stands in it, not what the nodes of its pattern read.
    """
    of_node = {step.node: (number, step) for number, steps in enumerate(stretches) for step in steps}
    seen, wanted = set[str](), set[tuple[str, int]]()
    pending: list[ov.Node] = list(model.get_results())
    while pending:
        node = pending.pop()
        if node.get_name() in seen:
            continue
        seen.add(node.get_name())
        number, step = of_node.get(node.get_name(), (None, None))
        if step is None:
            sources = [port.get_source_output() for port in node.inputs()]
        else:
            sources = [outputs[read.node, read.index] for read in step.reads]
        for source in sources:
            before = source.get_node()
            if before.get_name() in of_node and of_node[before.get_name()][0] != number:
                wanted.add((before.get_name(), source.get_index()))
            pending.append(before)
    return seen, wanted


class _Program:
    """The text of steps, and the inputs that they read."""

    def __init__(self, steps: list[Step], outputs: Outputs, memory: WeightMemory) -> None:
        self._outputs = outputs
        self._made = {made for step in steps for made in step.outputs}
        self._names: dict[Rows | Port, str] = {}
        self._inputs: dict[str, ov.Output] = {}
        steps = [_in_slabs(step, memory) for step in steps]
        operands = (operand for step in steps for operand in step.operands)
        self._weights = _Weights(operand for operand in operands if isinstance(operand, np.ndarray))
        self._lines = [self._line(step) for step in steps]

    def operation(self, results: Sequence[Rows | Port]) -> ov.Node:
        """The operation, whose outputs are these."""
        slabs = self._weights.slabs
        head = " ".join(["input", *self._inputs, *slabs])
        tail = " ".join(["output", *(self._names[rows] for rows in results)])
        constants = [ops.constant(slab, shared_memory=True).output(0) for slab in slabs.values()]
        program = "\n".join([_VERSION, head, *self._lines, tail])
        inputs = [*self._inputs.values(), *constants]
        return ovspec_ops.create(DECODER_LAYERS, inputs, {"program": program})

    def _line(self, step: Step) -> str:
        operands = [self._operand(operand) for operand in step.operands]
        outputs = [f"{self._name(made)}:{self._form(made)}" for made in step.outputs]
        settings = [f"{name}={_word(value)}" for name, value in step.settings.items()]
        if step.condition:
            table, place = step.condition
            settings.append(f"if={self._operand(table)}#{place}")
        return " ".join([*outputs, "=", step.name, *operands, *settings])

    def _name(self, made: Rows | Port) -> str:
        return self._names.setdefault(made, f"r{len(self._names)}")

    def _form(self, made: Rows | Port) -> str:
        """The width of rows; of a table the type and the dimensions."""
        if isinstance(made, Rows):
            return str(made.width)
        output = self._outputs[made.node, made.index]
        dims = ("?" if size.is_dynamic else str(size.get_length()) for size in output.get_partial_shape())
        kind = (
            "i32" if output.get_element_type() == ov.Type.i64 else output.get_element_type().get_type_name()
        )
        return f"{kind}[{','.join(dims)}]"

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, np.ndarray):
            return self._weights.place(operand)
        if operand is None:
            return "none"
        if operand in self._made:
            return self._name(operand)
        if isinstance(operand, Cache):
            self._inputs.setdefault(CACHE_TABLE, self._outputs[CACHE_TABLE, 0])
            return f"{CACHE_TABLE}#{operand.entry}"
        output = self._outputs[operand.node, operand.index]
        if isinstance(operand, Port):
            node = output.get_node()
            is_input = node.get_type_name() == "Parameter"
            name = node.get_friendly_name() if is_input else f"{node.get_name()}.{operand.index}"
            self._inputs.setdefault(name, output)
            return name
        if operand not in self._names:
            if len(output.get_partial_shape()) != 2:
                flat = ops.constant(np.array([-1, operand.width], np.int64))
                output = ops.reshape(output, flat, False).output(0)
            self._inputs[f"{self._name(operand)}:{operand.width}"] = output
        return self._name(operand)


def _word(value: object) -> str:
    """A setting as text; a number as f32 has it."""
    return str(np.float32(value)) if isinstance(value, float) else str(value)


class _Weights:
    """Where weights lie: in slabs that they were packed into. Each is an input as a whole, without a copy.

    Attributes:
        slabs: by the name of the input, u8.
    """

    def __init__(self, weights: Iterable[NDArray[np.generic]]) -> None:
        spans: dict[int, tuple[NDArray[np.uint8], int, int]] = {}
        for array in weights:
            slab, at = _slab(array)
            _, first, last = spans.get(slab.ctypes.data, (slab, at, at))
            spans[slab.ctypes.data] = (slab, min(first, at), max(last, at + array.nbytes))
        self.slabs = {f"w{i}": slab[first:last] for i, (slab, first, last) in enumerate(spans.values())}

    def place(self, array: NDArray[np.generic]) -> str:
        """Input and first byte of weights."""
        at = array.ctypes.data
        for name, slab in self.slabs.items():
            if 0 <= at - slab.ctypes.data < slab.nbytes:
                return f"{name}@{at - slab.ctypes.data}"
        raise AssertionError("weights that lie in none of the slabs that hold them all")


def _slab(array: NDArray[np.generic]) -> tuple[NDArray[np.uint8], int]:
    found = slab_of(array)
    assert found is not None, "native_linear packs weights into slabs"
    return found


def _in_slabs(step: Step, memory: WeightMemory) -> Step:
    """The step with small weights, such as those of norms, copied into a slab."""
    operands: list[Operand] = []
    for operand in step.operands:
        if isinstance(operand, np.ndarray) and slab_of(operand) is None:
            copy = memory.zeros((operand.nbytes,))
            copy[:] = operand.view(np.uint8).ravel()
            operand = copy
        operands.append(operand)
    return replace(step, operands=operands)
