"""Operations of no rows, as in a layer that a pass leaves out, beside tables and weights of its rows."""

from __future__ import annotations

import numpy as np
import openvino as ov
from ops.mlps import Mlp
from ops.passes import OpsPass, attention_tensors, compile_op, infer
from ops.test_block_select import Selection
from ops.test_cache_write import POISON, Written
from ops.test_gated_mlp import tensors_of
from ops.test_key_summary import UNTOUCHED, inputs_of
from ops.test_linear import Layers


def test_attention() -> None:
    case = OpsPass([(70, 3, True), (40, 2, True)], kv_heads=2, group=2, k_size=40, v_size=24, tree=True)
    tensors = attention_tensors(case)
    whole = infer(compile_op("VerifyAttention", tensors, case.attributes), tensors)[0]
    assert whole.shape == (5, 4 * 24) and whole.any()
    none = tensors | {name: ov.Tensor(tensors[name].data[:0]) for name in ("query", "attention")}
    compiled = compile_op("VerifyAttention", none, case.attributes)
    assert infer(compiled, none)[0].shape == (0, 4 * 24)
    np.testing.assert_array_equal(infer(compiled, tensors)[0], whole)


def test_attention_of_rows_that_only_write() -> None:
    """Behind CacheWrite, which has no output to copy, it is 0; others have theirs."""
    case = OpsPass([(70, 3, True), (40, 2, False), (5, 4, True)], kv_heads=2, group=2, k_size=40, v_size=24)
    tensors = attention_tensors(case)
    expected = infer(compile_op("VerifyAttention", tensors, case.attributes), tensors)[0]
    np.testing.assert_array_equal(expected[3:5], tensors["attention"].data[3:5])
    expected[3:5] = 0.0
    tensors["attention"] = ov.Tensor(np.zeros((9, 0), np.float32))
    found = infer(compile_op("VerifyAttention", tensors, case.attributes), tensors)[0]
    np.testing.assert_array_equal(found, expected)


def test_caches_stay() -> None:
    case = Written([3, 40], kv_heads=2, k_size=40, v_size=24)
    tensors = case.tensors | {name: ov.Tensor(case.tensors[name].data[:0]) for name in ("key", "value")}
    found = infer(compile_op("CacheWrite", tensors, case.attributes), tensors)
    assert found[0].shape == (0, 0)
    assert all((cache == POISON).all() for cache in case.caches)


def test_linear() -> None:
    layers = Layers(64, (80, 7))
    tensors = layers.tensors(layers.rows(0))
    found = infer(compile_op("Linear", tensors, layers.attributes), tensors)
    assert [rows.shape for rows in found] == [(0, 80), (0, 7)]


def test_gated_mlp() -> None:
    mlp = Mlp(64, 32, "u8")
    tensors = tensors_of(mlp, np.zeros((0, 64), np.float32), (16,), np.ones(3, np.float32))
    output, read = infer(compile_op("GatedMLP", tensors, mlp.attributes), tensors)
    assert output.shape == (0, 64) and read.tolist() == [0]


def test_summaries_stay() -> None:
    case = OpsPass([(70, 3, True)], kv_heads=2, group=2, k_size=40, v_size=24)
    tensors, summary = inputs_of(case)
    tensors["attention"] = ov.Tensor(tensors["attention"].data[:0])
    attributes = {"kv_heads": 2, "k_size": 40}
    infer(compile_op("KeySummary", tensors, attributes), tensors)
    assert (summary == UNTOUCHED).all()


def test_selection_limits_nobody() -> None:
    case = OpsPass([(700, 3, True), (90, 2, True)], kv_heads=2, group=2, k_size=40, v_size=24)
    selection = Selection(case, [3, 2])
    tensors = {name: ov.Tensor(array) for name, array in selection.inputs.items()}
    tensors["query"] = ov.Tensor(selection.inputs["query"][:0])
    blocks, counts = infer(compile_op("BlockSelect", tensors, selection.attributes), tensors)
    assert blocks.shape == (2, len(case.inputs["verify_block_indices"])) and (blocks == -1).all()
    assert counts.tolist() == [[-1, -1], [-1, -1]]
