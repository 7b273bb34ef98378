"""Graphs compiled for the shapes of frequent passes: they give the same bits, over the same cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops
from settings import F32

from ovspec.runtime import background_compile, quicker_graph
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.backends import Backends
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.devices import openvino_core, smallest_model
from ovspec.runtime.draft_runner import draft_runner
from ovspec.runtime.fixed_compilers import FixedCompilers
from ovspec.runtime.fixed_graphs import FixedGraphs
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows

# Rows of a pass, those that are sampled, and those that are rolled back before it; across ends of blocks, and
# far enough that the cache grows.
PASSES = ((40, 1, 0), *(((1, 1, 0), (3, 3, 2), (1, 1, 1)) * 12), (2100, 1, 0), *(((1, 1, 0), (3, 3, 2)) * 12))
SETTINGS: list[tuple[Any, dict[str, str]]] = [
    ("native", {}),
    ("native", F32),
    ("native", {**F32, "KV_CACHE_PRECISION": "f16"}),
    ("stock", F32),
    ("stock", {}),  # with AMX its MLPs are fused
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 4)


def graphs_of(runner: ModelRunner) -> FixedGraphs:
    assert runner.fixed_graphs is not None
    return runner.fixed_graphs


def logits(runner: ModelRunner, each: Callable[[], object]) -> list[NDArray[np.float32]]:
    """Of every pass; `each` is called behind it."""
    sequence, found = CachedSequence(), []
    tokens = np.random.default_rng(0).integers(2, 4096, 3000)
    for number, (count, sampled, back) in enumerate(PASSES):
        sequence.rollback(sequence.length - back)
        rows = Rows(sequence, tokens[number : number + count], sampled)
        found.append(np.array(runner.forward([rows])))
        each()
    runner.release(sequence)
    return found


@pytest.mark.parametrize(("backend", "properties"), SETTINGS)
def test_they_change_no_bit(demo_ir: Path, backend: Any, properties: dict[str, str]) -> None:
    runner = ModelRunner(demo_ir / "draft", attention=AttentionConfig(backend), properties=properties)
    graphs, own, taken = graphs_of(runner), runner.request, []

    def note() -> None:
        graphs.wait()
        taken.append(runner.request is not own)

    fixed = logits(runner, note)
    few = [count < 9 for count, _, _ in PASSES]
    anew = 1 if backend == "native" else 0  # where the cache has grown
    assert sum(taken) == sum(few) - 2 * (4 + anew)  # all of two kinds but the first four
    assert taken[-22:] == few[-22:]
    assert len(runner.cache._requests) <= 1 + 2 * 2  # of its own graph, and of one or two for each kind
    runner.fixed_graphs = None
    for one, other in zip(fixed, logits(runner, lambda: None), strict=True):
        np.testing.assert_array_equal(one, other)


def test_graphs_of_more_threads_take_turns_with_them(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns of four passes; then one graph is left, and the cache has no other."""
    monkeypatch.setattr(quicker_graph, "_PASSES", 4)
    monkeypatch.setattr(quicker_graph, "_TURNS", 2)
    runner = ModelRunner(demo_ir / "draft", properties=F32)
    runner.cache.ensure(128)  # it does not grow any more
    graphs, own, taken = graphs_of(runner), runner.request, list[ov.InferRequest]()
    two = {**runner.backends.plugin_properties, "INFERENCE_NUM_THREADS": 2}
    graphs.compilers = graphs.compilers._replace(
        threaded=lambda model: openvino_core().compile_model(model, "CPU", two)
    )

    def note() -> None:
        graphs.wait()
        taken.append(runner.request)

    fixed = logits(runner, note)
    assert len({id(request) for request in taken}) == 1 + 2 * 2
    assert len(runner.cache._requests) == 1 + 2
    runner.fixed_graphs = None
    for one, other in zip(fixed, logits(runner, lambda: None), strict=True):
        np.testing.assert_array_equal(one, other)
    assert runner.request is own


@pytest.mark.parametrize("backend", ["native", "stock"])
def test_the_plugin_keeps_one_thread_where_attention_is_native(demo_ir: Path, backend: Any) -> None:
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    runner = ModelRunner(demo_ir / "draft", attention=AttentionConfig(backend), properties=settings)
    core, graph = openvino_core(), graphs_of(runner).model.clone()
    two = core.compile_model(smallest_model(), "CPU", {"INFERENCE_NUM_THREADS": 2})
    compilers = FixedCompilers.of(core, Backends(properties=settings), two, graph, native=backend == "native")
    assert compilers is not None and compilers.threaded is not None
    threads = compilers.threaded(graph).get_property("INFERENCE_NUM_THREADS")
    given = {node.get_attributes()["threads"] for node in graph.get_ops() if node.get_type_name() == "Linear"}
    if backend == "native":
        assert (threads, given) == (1, {2})
    else:
        assert (threads, given) == (runner.compiled.get_property("INFERENCE_NUM_THREADS"), set())


def test_native_operations_with_threads_change_no_bit(demo_ir: Path) -> None:
    """Graphs as `FixedCompilers.threaded` makes them, in the passes that every model's graphs are for."""
    runner = ModelRunner(demo_ir / "draft", properties={"INFERENCE_PRECISION_HINT": "f32"})
    graphs, own = graphs_of(runner), runner.request
    two = openvino_core().compile_model(smallest_model(), "CPU", {"INFERENCE_NUM_THREADS": 2})
    settings = runner.backends.plugin_properties
    compilers = FixedCompilers.of(
        openvino_core(), Backends(properties=settings), two, graphs.model, native=True
    )
    assert compilers is not None and compilers.threaded is not None
    graphs.compilers = FixedCompilers(compilers.threaded, None, 1)
    shared = logits(runner, graphs.wait)
    assert runner.request is not own
    runner.fixed_graphs = None
    for one, other in zip(shared, logits(runner, lambda: None), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("settings", "native", "threads", "has_threaded"),
    [
        ({}, True, 2, True),
        ({}, False, 2, True),
        ({"INFERENCE_NUM_THREADS": 2}, True, 1, False),
        ({"NUM_STREAMS": 2}, True, 1, False),
        ({"ENABLE_CPU_PINNING": False}, True, 1, True),
    ],
)
def test_threads_follow_the_users_settings(
    settings: dict[str, Any], native: bool, threads: int, has_threaded: bool
) -> None:
    core = openvino_core()
    small = smallest_model()
    own = core.compile_model(small, "CPU", {"INFERENCE_NUM_THREADS": 2, **settings})
    compilers = FixedCompilers.of(core, Backends(properties=settings), own, small, native)
    assert compilers is not None
    assert (compilers.threads, compilers.threaded is not None) == (threads, has_threaded)


def test_one_whose_logits_have_other_bits_is_not_used(demo_ir: Path) -> None:
    runner = ModelRunner(demo_ir / "draft")
    graphs, own = graphs_of(runner), runner.request
    alone = graphs.compilers.fewest

    def doubled(model: ov.Model) -> ov.CompiledModel:
        result = model.get_results()[0].input(0)
        source = result.get_source_output()
        source.get_tensor().set_names(set())
        product = ops.multiply(source, np.float32(2)).output(0)
        product.get_tensor().set_names({"logits"})
        result.replace_source_output(product)
        return alone(model)

    graphs.compilers = FixedCompilers(doubled, doubled, 1)
    for _ in range(2):
        logits(runner, graphs.wait)
    assert runner.request is own


def test_passes_go_on_where_none_can_be_compiled(demo_ir: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = ModelRunner(demo_ir / "draft")
    own = runner.request

    def fails(model: ov.Model) -> ov.CompiledModel:
        raise MemoryError("no memory for another graph")

    graphs_of(runner).compilers = FixedCompilers(fails, None, 1)
    logits(runner, graphs_of(runner).wait)
    assert runner.request is own
    assert [record.getMessage() for record in caplog.records] == [
        f"ovspec: no graph is compiled for Kind(rows={rows}, sampled={rows}, states=0) "
        "(no memory for another graph); its passes go on as before"
        for rows in (1, 3)
    ]


def test_a_cache_too_small_to_compare_passes_has_none(
    demo_ir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """None is tried: it would fail, and warn."""
    runner, sequence = ModelRunner(demo_ir / "draft"), CachedSequence()
    own = runner.request
    runner.cache.max_bytes = 3 * runner.cache.block_bytes
    for token in range(8):
        runner.forward([Rows(sequence, np.array([token]))])
        graphs_of(runner).wait()
    assert runner.cache.capacity == 3
    assert runner.request is own and not caplog.records


def test_it_is_known_that_a_graph_is_being_compiled(demo_ir: Path) -> None:
    """No turn is timed meanwhile."""
    runner, seen = ModelRunner(demo_ir / "draft", properties=F32), list[bool]()
    graphs = graphs_of(runner)
    alone = graphs.compilers.fewest

    def watched(model: ov.Model) -> ov.CompiledModel:
        seen.append(background_compile.is_compiling())
        return alone(model)

    graphs.compilers = FixedCompilers(watched, None, 1)
    logits(runner, graphs.wait)
    assert seen and all(seen)
    end = time.monotonic() + 10
    while background_compile.is_compiling() and time.monotonic() < end:  # its future tells a moment later
        time.sleep(0.01)
    assert not background_compile.is_compiling()


def test_attention_of_their_caches_has_known_shapes(demo_ir: Path) -> None:
    """The plugin would infer them in every pass."""
    runner, sequence = ModelRunner(demo_ir / "draft"), CachedSequence()
    for token in range(8):
        runner.forward([Rows(sequence, np.array([token]))])
        graphs_of(runner).wait()
    attention = [
        node
        for node in runner.request.get_compiled_model().get_runtime_model().get_ops()
        if "VerifyAttention" in node.get_rt_info()["originalLayersNames"].value
    ]
    assert len(attention) == len(runner.cache.specs) // 2
    assert all(port.get_partial_shape().is_static for node in attention for port in node.inputs())


def test_there_are_a_few_at_most(demo_ir: Path) -> None:
    runner = ModelRunner(demo_ir / "draft")
    graphs_of(runner)._several.most = 0
    own, kinds = runner.request, set()

    def note() -> None:
        graphs_of(runner).wait()
        if runner.request is not own:
            kinds.add(runner.request.get_tensor("input_ids").shape[0])

    logits(runner, note)
    assert kinds == {1}


def test_rows_that_nobody_reads_end_with_those_of_single_rows(demo_ir: Path) -> None:
    """Several rows, whatever their number, share a graph of 8."""
    backends = Backends.resolve(demo_ir / "draft", properties=F32)
    runner = draft_runner(demo_ir / "draft", backends, weight_bytes=1)
    sequence, own, rows, logits = CachedSequence(), runner.request, [], []
    for number, count in enumerate((1, 2) * 4 + (1, 5, 1, 8)):
        found = runner.forward([Rows(sequence, np.arange(number, number + count))])
        rows.append((runner.request.get_tensor("input_ids").shape[0], runner.request is own))
        logits.append(np.array(found))
        graphs_of(runner).wait()
    assert rows == [(8, True)] * 8 + [(1, False), (8, False)] * 2
    runner.fixed_graphs, again = None, CachedSequence()
    for number, count in enumerate((1, 2) * 4 + (1, 5, 1, 8)):
        found = runner.forward([Rows(again, np.arange(number, number + count))])
        np.testing.assert_array_equal(found, logits[number])


def test_those_of_a_draft_have_one_thread(demo_ir: Path) -> None:
    """Stock attention gives other bits then, and the same tokens."""
    backends = Backends.resolve(demo_ir / "draft", attention=AttentionConfig("stock"))
    runner, sequence = draft_runner(demo_ir / "draft", backends, weight_bytes=1), CachedSequence()
    for token in range(6):
        runner.forward([Rows(sequence, np.array([token]))])
        graphs_of(runner).wait()
    assert runner.request.get_compiled_model().get_property("INFERENCE_NUM_THREADS") == 1
    assert runner.request.get_tensor("input_ids").shape[0] == 1
    assert not runner.request.get_compiled_model().input("input_ids").get_partial_shape().is_dynamic


@pytest.mark.parametrize("case", ["kept", "selects", "watched"])
def test_models_without_them(demo_ir: Path, tmp_path: Path, case: str) -> None:
    attention = AttentionConfig("native", selects=case == "selects")
    properties = {"CACHE_DIR": str(tmp_path)} if case == "kept" else {}
    runner = ModelRunner(
        demo_ir / "draft", attention=attention, properties=properties, watch=case == "watched"
    )
    assert runner.fixed_graphs is None


def test_passes_of_several_sequences_and_trees_take_the_models_own(demo_ir: Path) -> None:
    runner = ModelRunner(demo_ir / "draft")
    own, two = runner.request, [CachedSequence(), CachedSequence()]
    for _ in range(8):
        runner.forward([Rows(one, np.array([5])) for one in two])
        tree = np.array([-1, -1], np.int32)
        runner.forward([Rows(two[0], np.array([5, 6]), parents=tree)])
        graphs_of(runner).wait()
        assert runner.request is own
