"""Graphs for known shapes of models whose weights fill a pass: which have them, and by which threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from settings import F32

from ovspec.runtime import background_compile, fixed_compilers
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.backends import Backends
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.devices import openvino_core, smallest_model
from ovspec.runtime.fixed_compilers import FixedCompilers
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model

TWO = {"INFERENCE_NUM_THREADS": 2}
HINT = {"INFERENCE_PRECISION_HINT": "f32"}  # threads stay open


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is one, and its graphs come after 4 * 4 passes."""
    monkeypatch.setattr(fixed_compilers, "SMALL_MODEL", 1000)
    monkeypatch.setattr(background_compile, "PASSES", 4)


def compilers_of(
    model: ov.Model, settings: dict[str, Any], own: dict[str, Any], native: bool = True
) -> FixedCompilers | None:
    core = openvino_core()
    compiled = core.compile_model(smallest_model(), "CPU", own)
    return FixedCompilers.of(core, Backends(properties=settings), compiled, model, native)


def passes(runner: ModelRunner, count: int) -> tuple[list[int], list[NDArray[np.float32]]]:
    """Of one row and of five in turn: the shapes of those by a graph for known shapes, and all logits."""
    sequence, own, shapes, logits = CachedSequence(), runner.compiled, [], []
    for number in range(count):
        rows = 5 if number % 2 else 1
        tokens = np.arange(number, number + rows, dtype=np.int64)
        logits.append(np.array(runner.forward([Rows(sequence, tokens, sampled=rows)])))
        sequence.rollback(sequence.length - rows + 1)
        if runner.request.get_compiled_model().input("input_ids").get_partial_shape().is_static:
            shapes.append(rows)
        if runner.fixed_graphs is not None:
            runner.fixed_graphs.wait()
    assert runner.compiled is own
    runner.release(sequence)
    return shapes, logits


@pytest.mark.parametrize("properties", [{}, HINT, F32, {**HINT, "KV_CACHE_PRECISION": "f16"}])
def test_they_change_no_bit(demo_ir: Path, properties: dict[str, str]) -> None:
    """Two kinds have one each; the passes before the 17th of a kind take the model's own graph."""
    runner = ModelRunner(demo_ir / "draft", properties=properties)
    shapes, fixed = passes(runner, 60)
    assert (shapes.count(1), shapes.count(5)) == (30 - 16, 30 - 16)
    runner.fixed_graphs = None
    for one, other in zip(fixed, passes(runner, 60)[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_single_rows_have_one_and_others_too(demo_ir: Path) -> None:
    """Whatever came first; fewer rows do not take a graph of more, which costs more than it saves."""
    runner, sequence = ModelRunner(demo_ir / "draft", properties=F32), CachedSequence()
    graphs = runner.fixed_graphs
    assert graphs is not None
    shapes = []
    for rows in (3, 2, 1, 3, 2, 1):
        for _ in range(17):
            runner.forward([Rows(sequence, np.arange(rows, dtype=np.int64), sampled=rows)])
            sequence.rollback(sequence.length - rows)
            graphs.wait()
        shape = runner.request.get_compiled_model().input("input_ids").get_partial_shape()
        shapes.append(shape[0].get_length() if shape.is_static else None)
    assert shapes == [3, None, 1, 3, None, 1]


@pytest.mark.parametrize("settings", [{}, {"INFERENCE_NUM_THREADS": 1}, {"ENABLE_CPU_PINNING": False}])
def test_threads_are_those_of_the_models_own_graph(demo_ir: Path, settings: dict[str, Any]) -> None:
    runner = ModelRunner(demo_ir / "draft", properties={**HINT, **settings})
    assert runner.fixed_graphs is not None
    compilers = runner.fixed_graphs.compilers
    assert compilers.threaded is None
    graph = runner.fixed_graphs.model.clone()
    compiled = compilers.fewest(graph)
    for name in ("INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING"):
        assert compiled.get_property(name) == runner.compiled.get_property(name)
    given = {node.get_attributes()["threads"] for node in graph.get_ops() if node.get_type_name() == "Linear"}
    assert given == {0}


@pytest.mark.parametrize("case", ["stock attention", "stock products", "f16 tables"])
def test_models_whose_weights_would_be_copied_have_none(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case == "f16 tables":
        monkeypatch.setattr(fixed_compilers, "_MOST_CONVERTED", 4_000_000)
        runner = ModelRunner(build_model(get_shape("qwen3-0.6b", 1, 2000), "fp16"), properties=F32)
    elif case == "stock attention":
        runner = ModelRunner(demo_ir / "draft", attention=AttentionConfig("stock"))
    else:
        runner = ModelRunner(demo_ir / "draft", linear="stock")
    assert runner.fixed_graphs is None


@pytest.mark.parametrize(("kind", "has"), [("f32", True), ("f16", False), ("bf16", False)])
def test_tables_of_halves_are_converted(monkeypatch: pytest.MonkeyPatch, kind: str, has: bool) -> None:
    """Each time that OpenVINO compiles them."""
    monkeypatch.setattr(fixed_compilers, "_MOST_CONVERTED", 60_000)
    table = ops.constant(np.zeros((4000, 8), np.float32), getattr(ov.Type, kind))
    rows = ops.parameter([-1], ov.Type.i64)
    model = ov.Model([ops.gather(ops.convert(table, "f32"), rows, 0)], [rows])
    assert (compilers_of(model, {}, TWO) is not None) == has
