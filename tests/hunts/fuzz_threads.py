"""Operations that are computed at the same time: they meet at shared threads, scratch memory and tables.

It needs a library built with the thread sanitizer, whose loops start threads of the standard library
(`custom_ops/ovspec_ops/common/arena.hpp`): every access of two threads to one place that nothing orders is a
finding.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
from hunts.fuzz_hunt import Finding, Given
from hunts.fuzz_operation_cases import CASES
from numpy.typing import NDArray
from ops.conftest import runnable

from ovspec_ops import loader

CALLERS = 3
#: Tensors that an operation writes beside its outputs.
_WRITTEN = ("key_cache", "value_cache", "key_summary")


class Threads:
    """The hunt."""

    slow = 60.0  # with the thread sanitizer

    def __init__(self) -> None:
        self._isas = runnable()
        self._library = ctypes.CDLL(str(loader.extension_path()))

    def make(self, chance: random.Random) -> Given:
        """An operation several times, or several, with the threads that they ask for."""
        names = [chance.choice(list(CASES)) for _ in range(CALLERS)]
        if chance.random() < 0.5:
            names = names[:1] * CALLERS
        calls = [
            {"op": name, "sizes": CASES[name][0](chance), "threads": chance.choice((0, 0, 2, 3))}
            for name in names
        ]
        return {"isa": chance.choice(self._isas), "calls": calls}

    def attempt(self, given: Given) -> str:
        """Compute everything at once, and compare with each alone."""
        loader.set_isa(given["isa"])
        alone = [called(call) for call in given["calls"]]
        self._library.ovspec_hold_calls()
        together = [called(call) for call in given["calls"]]
        self._library.ovspec_make_held_calls()
        for call, one, other in zip(given["calls"], alone, together, strict=True):
            if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one(), other(), strict=True)):
                raise Finding(f"{call['op']} has another result beside other calls: {call}")
        return "one operation" if len({call["op"] for call in given["calls"]}) == 1 else "several operations"

    def smaller(self, given: Given) -> Iterator[Given]:
        """With a call less."""
        for left in range(len(given["calls"])):
            if len(given["calls"]) > 1:
                yield {**given, "calls": [*given["calls"][:left], *given["calls"][left + 1 :]]}


def called(call: Given) -> Callable[[], list[NDArray[Any]]]:
    """Call an operation; what gives its results, once they are there."""
    tensors, attributes = CASES[call["op"]][1](call["sizes"])
    inputs = [ov.op.Parameter(t.element_type, ov.PartialShape([-1] * len(t.shape))) for t in tensors.values()]
    node = loader.create(call["op"], inputs, {**attributes, "threads": call["threads"]})
    outputs = [ov.Tensor(output.element_type, ov.Shape([0])) for output in node.outputs()]
    node.evaluate(outputs, list(tensors.values()))
    written = [tensors[name] for name in _WRITTEN if name in tensors]

    def results() -> list[NDArray[Any]]:
        # Inputs share memory with arrays that live as long as they do.
        return [tensor.data.view(np.uint8) for tensor in (*outputs, *written)] if tensors else []

    return results
