"""Operations on several threads at once: callers that meet at shared threads, scratch memory and tables.

With a library built with the thread sanitizer, whose loops start threads of the standard library
(`custom_ops/ovspec_ops/common/arena.hpp`), every access of two threads to one place that nothing orders is a
finding. With another library results are compared only.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from hunts.fuzz_hunt import Finding, Given, Report, save
from hunts.fuzz_operation_cases import CASES
from ops.conftest import runnable

from ovspec_ops import loader

CALLERS = 3


class Threads:
    """The hunt."""

    def __init__(self) -> None:
        self._isas = runnable()
        self._pool = ThreadPoolExecutor(CALLERS)

    def make(self, chance: random.Random) -> Given:
        """An operation, or several, and the threads that they share."""
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
        list(self._pool.map(self._twice, given["calls"]))
        return (
            " and ".join(sorted({call["op"] for call in given["calls"]}))
            if len(given["calls"]) < 2
            else "equal"
        )

    def smaller(self, given: Given) -> Iterator[Given]:
        """With a caller less."""
        for left in range(len(given["calls"])):
            if len(given["calls"]) > 1:
                yield {**given, "calls": [*given["calls"][:left], *given["calls"][left + 1 :]]}

    def _twice(self, call: Given) -> None:
        first, second = (self._outputs(call) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            if not np.array_equal(one, other, equal_nan=True):
                raise Finding(f"{call['op']} computed two results of the same inputs beside others: {call}")

    def _outputs(self, call: Given) -> list[Any]:
        tensors, attributes = CASES[call["op"]][1](call["sizes"])
        inputs = [
            ov.op.Parameter(t.element_type, ov.PartialShape([-1] * len(t.shape))) for t in tensors.values()
        ]
        node = loader.create(call["op"], inputs, {**attributes, "threads": call["threads"]})
        outputs = [ov.Tensor(output.element_type, ov.Shape([0])) for output in node.outputs()]
        node.evaluate(outputs, list(tensors.values()))
        written = [t for name, t in tensors.items() if name.endswith(("_cache", "key_summary"))]
        return [tensor.data.copy() for tensor in (*outputs, *written)]


def find_planted_race(
    seed: int, start: int, count: int, seconds: float, folder: Path, before: list[str]
) -> Report:
    """Whether the thread sanitizer finds a counter of several threads without a lock.

    Args:
        seed, start, count, seconds: have no meaning here.
        folder: where a report is saved.
        before: the command that loads the library with the sanitizer.
    """
    began, report = time.monotonic(), Report("race", seed, start)
    code = "import ctypes, ovspec_ops as ops; ctypes.CDLL(str(ops.extension_path())).ovspec_planted_race()"
    done = subprocess.run([*before, sys.executable, "-c", code], capture_output=True, text=True)
    report.inputs, report.seconds = 1, round(time.monotonic() - began, 1)
    if "data race" in done.stderr:
        report.outcomes["planted race found"] = 1
    else:
        what = "the thread sanitizer does not find a planted race"
        save(report, {"number": 0, "what": what, "where": what, "trace": done.stderr, "input": None}, folder)
    return report
