"""The patterns of a decoder layer, each lowered to a step of DecoderLayers.

A pattern is found from its last node. What it does not know gives no step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import openvino as ov

from ovspec_transforms.graph import source_node
from ovspec_transforms.layers.operation_steps import OPERATIONS, operation_step, stack
from ovspec_transforms.layers.row_steps import (
    activation,
    concat,
    head,
    normalize,
    of_two,
    part,
    parts,
    scale,
    softmax,
    top_k,
)
from ovspec_transforms.layers.rows import Rows
from ovspec_transforms.layers.step import (
    Cache,
    Operand,
    Port,
    Step,
    behind,
    cache_type,
    either,
    number,
    own_rows,
    rows_into,
    rows_of_outputs,
    weights_of,
)


def step_of(node: ov.Node) -> Step | None:
    """The step whose last node this is; `None` where no pattern knows it."""
    for lower in _PATTERNS.get(node.get_type_name(), ()):
        if (step := lower(node)) is not None:
            step.node = node.get_name()
            return step
    return None


def _rms(node: ov.Node) -> Step | None:
    """Multiply(weights, Multiply(x, 1 / sqrt(mean(x^2) + eps)))."""
    found = either(node, "Multiply")
    if found is None:
        return None
    scaled, position = found
    root = either(scaled, "Divide")
    if root is None or number(root[0], 0) != 1.0:
        return None
    x = Rows.of(scaled.input(root[1]).get_source_output())
    sqrt = behind(root[0], 1, "Sqrt")
    add = behind(sqrt, 0, "Add") if sqrt else None
    mean = either(add, "ReduceMean") if add else None
    power = behind(mean[0], 0, "Power") if mean else None
    if add is None or mean is None or power is None or x is None or rows_into(power, 0) != x:
        return None
    epsilon, axis = number(add, mean[1]), number(mean[0], 1)
    shape = power.get_output_partial_shape(0)
    if number(power, 1) != 2.0 or epsilon is None or axis not in (-1.0, len(shape) - 1.0):
        return None
    size = shape[len(shape) - 1].get_length()
    weights, outputs = weights_of(node, position, size), rows_of_outputs(node)
    if weights is None or outputs is None:
        return None
    settings: dict[str, object] = {"size": size, "eps": epsilon}
    if (centred := _centred(behind(scaled, root[1], "Subtract"), size)) is not None:
        return Step("layer_norm", [centred, weights], outputs, settings)
    return Step("rms", [x, weights], outputs, settings)


def _centred(node: ov.Node | None, size: int) -> Rows | None:
    """x of Subtract(x, mean of x)."""
    mean = behind(node, 1, "ReduceMean") if node is not None else None
    if node is None or mean is None:
        return None
    x, shape = rows_into(node, 0), node.get_output_partial_shape(0)
    last = shape[len(shape) - 1].get_length() == size and number(mean, 1) in (-1.0, len(shape) - 1.0)
    return x if x is not None and last and rows_into(mean, 0) == x else None


def _layer_norm(node: ov.Node) -> Step | None:
    """Multiply(weights, MVN(x))."""
    found = either(node, "MVN")
    if found is None:
        return None
    mvn, position = found
    attributes, shape = mvn.get_attributes(), node.get_output_partial_shape(0)
    size = shape[len(shape) - 1].get_length()
    x, weights, outputs = rows_into(mvn, 0), weights_of(node, position, size), rows_of_outputs(node)
    if not (x and outputs) or weights is None or number(mvn, 1) not in (-1.0, len(shape) - 1.0):
        return None
    if not attributes["normalize_variance"] or str(attributes["eps_mode"]).upper() != "INSIDE_SQRT":
        return None
    return Step("layer_norm", [x, weights], outputs, {"size": size, "eps": attributes["eps"]})


def _rope(node: ov.Node) -> Step | None:
    """Add(x * cos, Concat(-second half of x, first half) * sin)."""
    products = [behind(node, position, "Multiply") for position in (0, 1)]
    for straight, turned in (products, products[::-1]):
        if straight is None or turned is None:
            return None
        halves = either(turned, "Concat")
        if halves is None:
            continue
        concat, sin_position = halves
        size = node.get_output_partial_shape(0)[-1].get_length()
        for name, x in (("rope", _turned(concat, size)), ("rope_pairs", _turned_pairs(concat, size))):
            for position in (0, 1):
                if x is not None and rows_into(straight, position) == x:
                    cos, sin = rows_into(straight, 1 - position), rows_into(turned, sin_position)
                    outputs = rows_of_outputs(node)
                    if cos and sin and outputs and cos.width == sin.width == size:
                        return Step(name, [x, cos, sin], outputs)
    return None


def _rope_of_halves(node: ov.Node) -> Step | None:
    """Concat(first * cos - second * sin, second * cos + first * sin), cos and sin of half a head."""
    if node.get_input_size() != 2:
        return None
    ends = [behind(node, 0, "Subtract"), behind(node, 1, "Add")]
    if ends[0] is None or ends[1] is None:
        return None
    products = [behind(end, position, "Multiply") for end in ends for position in (0, 1)]
    factors = [
        tuple(rows_into(product, position) for position in (0, 1))
        for product in products
        if product is not None
    ]
    outputs = rows_of_outputs(node)
    if len(factors) != 4 or not outputs:
        return None
    (first, cos), (second, sin), *others = factors
    if not (first and cos and second and sin) or others != [(second, cos), (first, sin)]:
        return None
    split = source_node(products[0], 0) if products[0] is not None else node
    if split.get_type_name() not in ("VariadicSplit", "Split") or (first.index, second.index) != (0, 1):
        return None
    shape, x = split.get_input_partial_shape(0), rows_into(split, 0)
    size = shape[len(shape) - 1].get_length()
    whole = number(split, 1) in (-1.0, len(shape) - 1.0) and split.get_output_size() == 2
    if first.node != second.node or not whole or x is None or not 2 * cos.width == 2 * sin.width == size:
        return None
    return Step("rope", [x, cos, sin], outputs, {"size": size})


def _turned_pairs(concat: ov.Node, size: int) -> Rows | None:
    """x of Concat(-odd values of x, even values of x), which stand in turn."""
    if concat.get_input_size() != 2 or concat.get_output_partial_shape(0)[-1] != 2:
        return None
    negated, even = behind(concat, 0, "Multiply"), behind(concat, 1, "Slice")
    found = either(negated, "Slice") if negated else None
    if negated is None or even is None or found is None or number(negated, found[1]) != -1.0:
        return None
    odd = found[0]
    for node, begin in ((odd, 1), (even, 0)):
        numbers = [number(node, position) for position in (1, 2, 3, 4)]
        shape = node.get_input_partial_shape(0)
        end = numbers[1]
        if numbers[0] != begin or numbers[2] != 2.0 or end is None or end < size:
            return None
        if numbers[3] not in (-1.0, len(shape) - 1.0) or shape[len(shape) - 1] != size:
            return None
    x = rows_into(odd, 0)
    return x if x is not None and x == rows_into(even, 0) else None


def _turned(concat: ov.Node, size: int) -> Rows | None:
    """x of Concat(-x[half:], x[:half]) along the last axis."""
    if concat.get_input_size() != 2 or concat.get_attributes()["axis"] not in (-1, 3):
        return None
    negated, first = behind(concat, 0, "Multiply"), behind(concat, 1, "Slice")
    found = either(negated, "Slice") if negated else None
    if negated is None or first is None or found is None or number(negated, found[1]) != -1.0:
        return None
    half = size // 2
    second = found[0]
    if _sliced(second) != (half, size) or _sliced(first) != (0, half):
        return None
    x = rows_into(second, 0)
    return x if x is not None and x == rows_into(first, 0) else None


def _sliced(node: ov.Node) -> tuple[int, int] | None:
    """Begin and end of a slice of the last axis with step 1."""
    numbers = [number(node, position) for position in (1, 2, 3, 4)]
    if any(number is None for number in numbers):
        return None
    begin, end, step, axis = (int(number) for number in numbers if number is not None)
    shape = node.get_input_partial_shape(0)
    if step != 1 or axis not in (-1, len(shape) - 1):
        return None
    size = shape[len(shape) - 1].get_length()
    return min(begin, size), min(end, size)


def _gated(node: ov.Node) -> Step | None:
    """silu(a) * b."""
    found = either(node, "Swish")
    if found is None:
        return None
    a, b, outputs = rows_into(found[0], 0), rows_into(node, found[1]), rows_of_outputs(node)
    if not (a and b and outputs) or found[0].get_input_size() != 1 or a.width != b.width:
        return None
    return Step("silu_multiply", [a, b], outputs)


def _linear(node: ov.Node) -> Step | None:
    x, outputs = rows_into(node, 0), rows_of_outputs(node)
    packed = source_node(node, 1)
    if not (x and outputs) or packed.get_type_name() != "Constant":
        return None
    attributes = node.get_attributes()
    settings = {name: attributes[name] for name in ("format", "groups", "row_bits")}
    operands: list[Operand] = [x, packed.get_data()]
    if node.get_input_size() > 2:
        operands.append(Port.of(node, 2))
        settings["adapter_layers"] = ",".join(str(number) for number in attributes["adapter_layers"])
    return Step("linear", operands, outputs, settings)


def _cache_write(node: ov.Node) -> Step | None:
    key, value, outputs = rows_into(node, 0), rows_into(node, 1), rows_of_outputs(node)
    if not (key and value and outputs):
        return None
    caches = [Cache.of(node, position) for position in (2, 3)]
    settings = {name: node.get_attributes()[name] for name in ("kv_heads", "k_size", "v_size")}
    operands: list[Operand] = [key, value, *caches, Port.of(node, 4)]
    return Step("cache_write", operands, outputs, settings | cache_type(operands))


def _attention(node: ov.Node) -> Step | None:
    query, written, outputs = (
        rows_into(node, 0),
        own_rows(node.input(3).get_source_output()),
        rows_of_outputs(node),
    )
    if not (query and written and outputs) or written.width:
        return None
    caches = [Cache.of(node, position) for position in (1, 2)]
    others = [Port.if_any(node, position) for position in range(4, node.get_input_size())]
    attributes = node.get_attributes()
    settings = {
        name: attributes[name] for name in ("kv_heads", "k_size", "v_size", "scale", "sliding_window")
    }
    if attributes["past_window"]:
        settings["past_window"] = attributes["past_window"]
    if not attributes["causal"]:
        settings["causal"] = 0
    operands: list[Operand] = [query, *caches, written, *others]
    return Step("attention", operands, outputs, settings | cache_type(operands))


def _either(node: ov.Node) -> Step | None:
    """Select(number of a table != 0, rows, other rows)."""
    chosen = behind(node, 0, "NotEqual")
    one = behind(chosen, 0, "Gather") if chosen is not None and number(chosen, 1) == 0 else None
    a, b, outputs = rows_into(node, 1), rows_into(node, 2), rows_of_outputs(node)
    if one is None or not (a and b and outputs) or a.width != b.width:
        return None
    place = number(one, 1)
    if place is None or number(one, 2) != 0 or one.get_output_element_type(0) != ov.Type.i32:
        return None
    return Step("either", [a, b], outputs, condition=(Port.of(one, 0), int(place)))


_PATTERNS: dict[str, tuple[Callable[[ov.Node], Step | None], ...]] = {
    "Multiply": (_rms, _layer_norm, _gated, partial(of_two, name="multiply"), scale),
    "Add": (_rope, partial(of_two, name="add")),
    "Concat": (_rope_of_halves, concat, stack),
    "Softmax": (softmax,),
    "Divide": (normalize,),
    "TopK": (top_k,),
    "Slice": (part,),
    "Select": (_either,),
    "Reshape": (head,),
    **dict.fromkeys(("Split", "VariadicSplit"), (parts,)),
    **dict.fromkeys(("Swish", "Gelu", "Relu", "Sigmoid", "Tanh"), (activation,)),
    "Linear": (_linear,),
    "CacheWrite": (_cache_write,),
    "VerifyAttention": (_attention,),
    **dict.fromkeys(OPERATIONS, (operation_step,)),
}
