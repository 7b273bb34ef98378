"""Models that hold the operations: saved, read, compiled from a cache, run by several requests at once.

The graphs here have no stock PagedAttention node, which OpenVINO itself does not read back from IR.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops
from ops.passes import OpsPass, attention_tensors, infer, parameters

import ovspec_ops
from ovspec_ops.key_summary.reference import summarise

Outputs = list[NDArray[Any]]


def make_case(seed: int = 0) -> OpsPass:
    return OpsPass(
        [(300, 4, True), (100, 2, True)],
        k_size=24,
        v_size=16,
        fmt="u8_token",
        window=200,
        seed=seed,
        sinks=True,
        tree=True,
    )


def tensors_of(case: OpsPass) -> dict[str, ov.Tensor]:
    shape = (len(case.inputs["key_cache"]), case.kv_heads, 32, case.k_size)
    keys = np.random.default_rng(case.seed).standard_normal(shape).astype(np.float32)
    summary = np.stack([summarise(block, 32, case.k_size) for block in keys])
    attention = {
        name: tensor for name, tensor in attention_tensors(case).items() if not name.startswith("selected")
    }
    return attention | {
        "key_summary": ov.Tensor(summary),
        "summarised_lens": ov.Tensor(case.summarised),
        "verify_budgets": ov.Tensor(np.array([5, 3], np.int32)),
    }


def make_model(case: OpsPass) -> ov.Model:
    """KeySummary, BlockSelect and VerifyAttention in a row."""
    tensors = tensors_of(case)
    nodes = dict(zip(tensors, parameters(tensors), strict=True))
    sizes = {"kv_heads": case.kv_heads, "k_size": case.k_size}
    caches = [nodes[n] for n in ("key_cache", "value_cache", "attention")]
    token = ovspec_ops.create(
        "KeySummary",
        [caches[0], caches[2], *(nodes[n] for n in ("key_summary", "verify_tables", "summarised_lens"))],
        sizes,
    )
    chosen = ovspec_ops.create(
        "BlockSelect",
        [
            nodes["query"],
            nodes["key_summary"],
            token,
            nodes["verify_tables"],
            nodes["verify_budgets"],
            ops.constant(np.ones(2, np.float32)),  # full coverage
        ],
        sizes,
    )
    verify = ovspec_ops.create(
        "VerifyAttention",
        [
            nodes["query"],
            *caches,
            nodes["verify_tables"],
            *chosen.outputs(),
            nodes["sinks"],
        ],
        case.attributes,
    )
    outputs = [verify.output(0), chosen.output(0), chosen.output(1)]
    return ov.Model([ov.op.Result(o) for o in outputs], list(nodes.values()))


def same(a: Outputs, b: Outputs) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def make_core() -> ov.Core:
    core = ov.Core()
    ovspec_ops.load(core)
    return core


def test_saved_model_reads_back_and_gives_the_same_output(tmp_path: Path) -> None:
    case = make_case()
    model, core = make_model(case), make_core()
    expected = infer(core.compile_model(model, "CPU"), tensors_of(case))
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    restored = core.read_model(tmp_path / "model.xml")
    attributes = {n.get_type_name(): n.get_attributes() for n in restored.get_ops()}
    assert attributes["KeySummary"] == {"kv_heads": 2, "k_size": 24, "threads": 0}
    assert attributes["BlockSelect"] == {
        "kv_heads": 2, "k_size": 24, "rule": "mass", "sink_blocks": 1, "local_blocks": 1, "scale": 1.0,
        "threads": 0,
    }  # fmt: skip
    assert attributes["VerifyAttention"] == {
        "kv_heads": 2, "k_size": 24, "v_size": 16, "scale": pytest.approx(24**-0.5), "sliding_window": 200,
        "past_window": 0, "causal": True, "threads": 0,
    }  # fmt: skip
    assert same(infer(core.compile_model(restored, "CPU"), tensors_of(case)), expected)


def test_an_ir_from_before_attributes_were_added(tmp_path: Path) -> None:
    case = make_case()
    model, core = make_model(case), make_core()
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    text = (tmp_path / "model.xml").read_text()
    older = text.replace(' past_window="0"', "").replace(' causal="true"', "")
    assert len(older) < len(text) - 20
    (tmp_path / "model.xml").write_text(older)
    expected, restored = (
        infer(core.compile_model(one, "CPU"), tensors_of(case))
        for one in (model, core.read_model(tmp_path / "model.xml"))
    )
    assert same(restored, expected)


def test_compiled_model_comes_from_the_cache(tmp_path: Path) -> None:
    case = make_case()
    ov.save_model(make_model(case), tmp_path / "model.xml", compress_to_fp16=False)
    core = make_core()
    expected = infer(core.compile_model(tmp_path / "model.xml", "CPU"), tensors_of(case))
    for cached in (False, True):
        compiled = make_core().compile_model(
            tmp_path / "model.xml", "CPU", {"CACHE_DIR": str(tmp_path / "cache")}
        )
        assert compiled.get_property("LOADED_FROM_CACHE") == cached
        assert same(infer(compiled, tensors_of(case)), expected)


def test_model_needs_the_extension(tmp_path: Path) -> None:
    ov.save_model(make_model(make_case()), tmp_path / "model.xml")
    with pytest.raises(RuntimeError, match=r"Cannot create (KeySummary|BlockSelect|VerifyAttention)"):
        ov.Core().read_model(tmp_path / "model.xml")


def test_clone_keeps_attributes() -> None:
    model = make_model(make_case())
    pairs = zip(model.get_ordered_ops(), model.clone().get_ordered_ops(), strict=True)
    assert all(a.get_attributes() == b.get_attributes() for a, b in pairs if a.get_type_name() != "Parameter")


def test_requests_in_parallel_do_not_meet() -> None:
    cases = [make_case(seed) for seed in range(4)]
    compiled = make_core().compile_model(make_model(cases[0]), "CPU", {"NUM_STREAMS": "2"})
    expected = [infer(compiled, tensors_of(case)) for case in cases]
    assert not same(expected[0], expected[1])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            results = pool.map(lambda case: infer(compiled, tensors_of(case)), cases)
            assert all(same(out, want) for out, want in zip(results, expected, strict=True))
