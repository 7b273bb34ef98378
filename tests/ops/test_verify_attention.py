"""VerifyAttention: cases of one kind; passes of every kind are in test_verify_attention_properties.py."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from ops.caches import FORMATS
from ops.compare import assert_close
from ops.passes import OpsPass, attention_tensors, compile_op, evaluate, infer

from ovspec_ops import loader
from ovspec_ops.verify_attention import verify_attention

MIXED = [(71, 5, True), (40, 9, False), (31, 1, True), (0, 3, True), (63, 33, False), (290, 2, True)]


def run(case: OpsPass) -> NDArray[np.float32]:
    tensors = attention_tensors(case)
    return evaluate("VerifyAttention", tensors, case.attributes)[0]


def tolerance(fmt: str) -> float:
    """16-bit queries and weights err by some 1e-5 of a score; a u8 cache itself by a thousand times that."""
    integer = fmt.startswith("u8") and loader.active_isa().endswith(("amx", "vnni", "dot", "tiles"))
    return 3e-4 if integer else 1e-5


def check(case: OpsPass) -> None:
    reference = verify_attention(**case.inputs, **case.attributes)
    assert np.isfinite(reference).all()
    assert_close("VerifyAttention", reference, run(case), tolerance(case.fmt))


@pytest.mark.parametrize("fmt", ["f32", "u8_token"])
def test_rows_that_are_not_verified_are_copied(isa: str, fmt: str) -> None:
    case = OpsPass(MIXED, kv_heads=2, group=3, k_size=72, v_size=40, fmt=fmt)
    check(case)
    out = run(case)
    for s, (_, _, verified) in enumerate(MIXED):
        begin, end = case.inputs["subsequence_begins"][s : s + 2]
        copied = np.array_equal(out[begin:end], case.inputs["attention"][begin:end])
        assert copied != verified, f"sequence {s}"


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_a_tree_that_is_a_chain_is_bitwise_the_chain(isa: str, rows: int) -> None:
    chain, tree = OpsPass([(45, rows, True)], window=20), OpsPass([(45, rows, True)], window=20)
    tree.inputs["verify_parents"] = np.arange(-1, rows - 1, dtype=np.int32)
    assert np.array_equal(run(chain), run(tree))


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_sink_above_every_score_takes_the_weight(isa: str, rows: int) -> None:
    case = OpsPass([(45, rows, True)], sinks=True)
    case.inputs["sinks"][:] = [-np.inf, 0.0, 3.0, 200.0]
    check(case)
    out = run(case).reshape(rows, 4, -1)
    assert np.abs(out[:, :3]).max() > 0.0
    assert not out[:, 3].any()


def test_selection_of_every_block_is_bitwise_dense(isa: str) -> None:
    dense, selected = (run(OpsPass(MIXED, keep=keep, fmt="u8_token")) for keep in (None, 1.0))
    assert np.array_equal(dense, selected)


def test_dense_and_selected_heads_mix(isa: str) -> None:
    case = OpsPass(MIXED, keep=0.4, kv_heads=3, seed=5)
    case.inputs["selected_counts"][1] = -1
    check(case)


@pytest.mark.parametrize("magnitude", [1e-3, 30.0, 200.0])
def test_scores_of_all_magnitudes(isa: str, magnitude: float) -> None:
    check(OpsPass([(500, 6, True)], k_size=64, v_size=64, magnitude=magnitude))


@pytest.mark.parametrize("fmt", FORMATS)
def test_one_token_is_its_own_value(isa: str, fmt: str) -> None:
    check(OpsPass([(0, 1, True)], k_size=8, v_size=8, fmt=fmt))


def test_u8_keys_with_an_outlier_channel(isa: str) -> None:
    case = OpsPass([(400, 4, True)], kv_heads=1, group=1, k_size=64, v_size=64, fmt="u8_token")
    data = case.inputs["key_cache"][..., 8:]
    data[...] = 128 + (data % 3)
    data[..., 5] = 255
    check(case)


def test_batch_does_not_change_a_sequence(isa: str) -> None:
    case = OpsPass(MIXED, fmt="u8_token", k_size=64, v_size=64)
    together = run(case)
    alone = OpsPass(MIXED, fmt="u8_token", k_size=64, v_size=64)
    alone.inputs["verify_past_lens"][1:] = -1
    rows = slice(*case.inputs["subsequence_begins"][:2])
    assert np.array_equal(together[rows], run(alone)[rows])


@pytest.mark.parametrize("fmt", ["f32", "u8_token"])
def test_compiled_graph_and_thread_counts_agree_bitwise(isa: str, fmt: str) -> None:
    case = OpsPass([*MIXED, (3000, 8, True)], fmt=fmt, kv_heads=2, k_size=64, v_size=64)
    tensors = attention_tensors(case)
    outputs = [evaluate("VerifyAttention", tensors, case.attributes)[0]]
    for threads in (1, 2):
        compiled = compile_op("VerifyAttention", tensors, case.attributes, INFERENCE_NUM_THREADS=threads)
        outputs += [infer(compiled, tensors)[0] for _ in range(5)]
    assert all(np.array_equal(outputs[0], other) for other in outputs[1:])
    reference = verify_attention(**case.inputs, **case.attributes)
    assert_close("VerifyAttention", reference, outputs[0], tolerance(fmt))


def test_pass_without_verification_copies_the_stock_rows() -> None:
    case = OpsPass([(0, 50, False), (7, 20, False)])
    tensors = attention_tensors(case)
    compiled = compile_op("VerifyAttention", tensors, case.attributes)
    assert np.array_equal(infer(compiled, tensors)[0], case.inputs["attention"])


@pytest.mark.parametrize("fmt", ["f16", "u8_token"])
def test_instruction_sets_agree(fmt: str) -> None:
    case = OpsPass(MIXED, fmt=fmt, k_size=72, v_size=40)
    before = loader.active_isa()
    try:
        outputs = []
        for name in loader.available_isas():
            loader.set_isa(name)
            outputs.append(run(case))
    finally:
        loader.set_isa(before)
    for other in outputs[1:]:
        assert_close("instruction sets", outputs[0], other, 2e-6 if fmt == "f16" else 3e-4)
