"""Random shapes, types, attributes and contents for every native operation.

Half of the inputs are valid, and compared with the NumPy references as the tests of the operations do it, at
sizes of their own. The other half are valid ones with one to three changes. An operation refuses them in its
own words, or computes something; run with a library built with sanitizers, what it reads and writes is
checked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
from hunts.fuzz_hunt import Finding, Given
from hunts.fuzz_operation_cases import CASES, SEEDS, Tensors
from hunts.fuzz_programs import changed_program
from hunts.fuzz_values import NUMBERS
from ops.conftest import runnable

from ovspec_ops import loader

_TYPES = {name: getattr(ov.Type, name) for name in ("u4", "u8", "i8", "i32", "i64", "f16", "bf16", "f32")}
_DIMS = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64, 65, 128, 1000)
_MOST_VALUES = 1 << 18
_FILLS = ("cut", "cut", "zero", "ones", "random", "largest", "nan", "one value")


class Operations:
    """The hunt."""

    slow = 10.0  # with sanitizers

    def __init__(self) -> None:
        self._isas = runnable()

    def make(self, chance: random.Random) -> Given:
        """An operation with its sizes, and changes."""
        op = chance.choice(list(CASES))
        sizes, tensors_of_sizes, _ = CASES[op]
        given = {"op": op, "isa": chance.choice(self._isas), "sizes": sizes(chance), "changes": []}
        if chance.random() < 0.5:
            return given
        tensors, attributes = tensors_of_sizes(given["sizes"])
        changes = [_change(tensors, attributes, chance) for _ in range(chance.choice((1, 1, 2, 3)))]
        return {**given, "changes": changes, "known": chance.choice(("nothing", "ranks", "shapes"))}

    def attempt(self, given: Given) -> str:
        """Compare, or look at the refusal."""
        op, before = given["op"], loader.active_isa()
        loader.set_isa(given["isa"])
        try:
            if given["changes"]:
                return f"{op} {_hostile(given)}"
            lists = {key: tuple(value) for key, value in given["sizes"].items() if isinstance(value, list)}
            try:
                CASES[op][2](isa=given["isa"], **{**given["sizes"], **lists})
            except AssertionError as error:
                raise Finding(
                    f"{op} differs from its reference: {' '.join(str(error).split())[:300]}"
                ) from error
            return f"{op} equal"
        finally:
            loader.set_isa(before)

    def smaller(self, given: Given) -> Iterator[Given]:
        """With a change less, or smaller sizes."""
        changes = given["changes"]
        if len(changes) > 1:
            for left in range(len(changes)):
                yield {**given, "changes": changes[:left] + changes[left + 1 :]}
        for name, value in given["sizes"].items():
            if isinstance(value, int) and not isinstance(value, bool) and value > 1 and not changes:
                yield {**given, "sizes": {**given["sizes"], name: value // 2 or 1}}


def _change(tensors: Tensors, attributes: Given, chance: random.Random) -> Given:
    """Another tensor, or another attribute."""
    if chance.random() < (0.7 if "program" in attributes else 0.2):
        name = chance.choice([*attributes, "threads"])
        value = attributes.get(name, 0)
        changed = changed_program(value, chance) if name == "program" else _attribute(value, chance)
        return {"attribute": name, "value": changed}
    name = chance.choice(list(tensors))
    shape = list(tensors[name].shape)
    kind, fill = chance.random(), chance.choice(_FILLS)
    if kind < 0.2:
        shape = [chance.choice(_DIMS) for _ in range(chance.randint(0, 4))]
    elif kind < 0.7 and shape:
        at = chance.randrange(len(shape))
        shape[at] = chance.choice((*_DIMS, shape[at] - 1, shape[at] + 1, 2 * shape[at], shape[at] // 2))
    elif fill == "cut":  # the same shape: its values change
        fill = chance.choice(("random", "one value", "largest", "nan"))
    own = tensors[name].element_type.get_type_name()
    return {
        "tensor": name,
        "shape": [max(0, size) for size in shape],
        "type": own if chance.random() < 0.8 else chance.choice(list(_TYPES)),
        "fill": fill,
        "seed": chance.randrange(SEEDS),
    }


def _attribute(value: Any, chance: random.Random) -> Any:
    if isinstance(value, list):
        return [
            chance.choice((0, 1, -1, 7, 31, 2**31, *value)) for _ in range(chance.randint(0, len(value) + 1))
        ]
    if isinstance(value, str):
        return chance.choice(("", "f32", "u8", "u4", "bf16", "values", "none", "min_max", "union", "\x00"))
    if isinstance(value, float):
        return float(chance.choice(NUMBERS))
    near = (
        0,
        1,
        -1,
        value - 1,
        value + 1,
        2 * value,
        8,
        16,
        1000,
        2**31 - 1,
        2**31,
        2**62,
        -(2**63),
        2**63 - 1,
    )
    return chance.choice(near)


def _hostile(given: Given) -> str:
    """Create and run a changed operation; what came of it."""
    op = given["op"]
    tensors, attributes = CASES[op][1](given["sizes"])
    for change in given["changes"]:
        if "attribute" in change:
            attributes = {**attributes, change["attribute"]: change["value"]}
        else:
            tensors[change["tensor"]] = _tensor(change, tensors[change["tensor"]])
    try:
        node = loader.create(
            op, [_parameter(tensor, given["known"]) for tensor in tensors.values()], attributes
        )
        outputs = [ov.Tensor(output.element_type, ov.Shape([0])) for output in node.outputs()]
        if not node.evaluate(outputs, list(tensors.values())):
            raise Finding(f"{op} was not computed: {given['changes']}")
    except (ValueError, RuntimeError) as error:
        # The steps of DecoderLayers are operations, and OpenVINO refuses to read a tensor as another type.
        own = CASES if op == "DecoderLayers" else (op,)
        known = [*(f"{name}: " for name in own), "is not representable as pointer"]
        if any(words in str(error) for words in known):
            return "refused"
        raise Finding(
            f"{op} was refused in the words of others: {' '.join(str(error).split())[:300]}"
        ) from error
    return "computed"


def _parameter(tensor: ov.Tensor, known: str) -> ov.Node:
    shape = {
        "nothing": ov.PartialShape.dynamic(),
        "ranks": ov.PartialShape([-1] * len(tensor.shape)),
        "shapes": ov.PartialShape(list(tensor.shape)),
    }[known]
    return ov.op.Parameter(ov.Type.dynamic if known == "nothing" else tensor.element_type, shape)


def _tensor(change: Given, valid: ov.Tensor) -> ov.Tensor:
    """A tensor of another shape or type, or with other values."""
    shape = change["shape"]
    while np.prod(shape, dtype=float) > _MOST_VALUES:
        shape = [size // 2 for size in shape]
    made = ov.Tensor(_TYPES[change["type"]], ov.Shape(shape))
    data, rng, fill = made.data.reshape(-1), np.random.default_rng(change["seed"]), change["fill"]
    bits = data.view(np.uint8)
    if fill == "cut":  # the valid bytes, cut off or repeated
        bits[...] = np.resize(valid.data.reshape(-1).view(np.uint8), bits.size) if valid.data.size else 0
    elif fill == "random":
        bits[...] = rng.integers(0, 256, bits.size, np.uint8)
    elif fill == "largest":
        bits[...] = 0xFF
        bits[3::4] = 0x7F
    elif fill == "nan" and data.dtype.kind == "f":
        bits[...] = np.resize(valid.data.reshape(-1).view(np.uint8), bits.size) if valid.data.size else 0
        data[rng.random(data.size) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    elif fill == "one value" and valid.data.size and data.size:
        bits[...] = np.resize(valid.data.reshape(-1).view(np.uint8), bits.size)
        value = rng.choice([0, 1, 2, 31, 32, 33, 100])
        data[rng.integers(data.size)] = value if data.dtype.kind == "u" else value * rng.choice([-1, 1])
    else:
        bits[...] = fill != "zero"
    return made
