from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.caches import FORMATS
from ops.compare import assert_close
from ops.passes import OpsPass, compile_op, evaluate, infer

from ovspec_ops.key_summary import key_summary

UNTOUCHED = 7.0
# No sequence is excluded here: KeySummary follows every write of the stock node.
SEQUENCES = [(70, 5, True), (0, 40, True), (31, 1, True), (32, 1, True), (200, 3, True), (5, 64, True)]


def inputs_of(case: OpsPass) -> tuple[dict[str, ov.Tensor], NDArray[np.float32]]:
    summary = np.full((len(case.inputs["key_cache"]), case.kv_heads, case.k_size), UNTOUCHED, np.float32)
    tensors = {
        "key_cache": case.tensor("key_cache"),
        "attention": case.tensor("attention"),
        "key_summary": ov.Tensor(summary, shared_memory=True),
        "past_lens": case.tensor("verify_past_lens"),
        "subsequence_begins": case.tensor("subsequence_begins"),
        "block_indices": case.tensor("verify_block_indices"),
        "block_indices_begins": case.tensor("verify_block_indices_begins"),
    }
    return tensors, summary


def reference(case: OpsPass) -> NDArray[np.float64]:
    names = ("verify_past_lens", "subsequence_begins", "verify_block_indices", "verify_block_indices_begins")
    untouched = np.full((len(case.inputs["key_cache"]), case.kv_heads, case.k_size), UNTOUCHED, np.float32)
    tables = [case.inputs[name] for name in names]
    return key_summary(case.inputs["key_cache"], untouched, *tables, k_size=case.k_size)


def sizes(case: OpsPass) -> dict[str, Any]:
    return {"kv_heads": case.kv_heads, "k_size": case.k_size}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("k_size", [8, 24, 40, 64, 72, 80, 96, 128, 256])
def test_means_of_the_written_blocks(isa: str, fmt: str, k_size: int) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, k_size=k_size, v_size=8, fmt=fmt)
    tensors, summary = inputs_of(case)
    token = evaluate("KeySummary", tensors, sizes(case))[0]
    assert token.tolist() == [0]
    expected = reference(case)
    assert_close("KeySummary", expected, summary, 1e-6)
    assert np.array_equal(summary == UNTOUCHED, expected == UNTOUCHED)


def test_plugin_writes_the_tensor_of_the_request(isa: str) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, k_size=40)
    tensors, summary = inputs_of(case)
    infer(compile_op("KeySummary", tensors, sizes(case)), tensors)
    assert_close("KeySummary", reference(case), summary, 1e-6)


def test_sequence_without_rows_writes_nothing() -> None:
    case = OpsPass([(40, 2, True), (64, 0, True)])
    tensors, summary = inputs_of(case)
    evaluate("KeySummary", tensors, sizes(case))
    assert (summary != UNTOUCHED).any(axis=(1, 2)).sum() == 1


BAD_INPUTS = {
    "past_lens": (
        "verify_past_lens",
        0,
        -1,
        r"KeySummary: past_lens\[0\] is -1, expected a number of cached",
    ),
    "table": ("verify_past_lens", 0, 400, r"KeySummary: block_indices holds 4 blocks for sequence 0"),
    "block": (
        "verify_block_indices",
        2,
        77,
        r"KeySummary: block_indices\[2\] is 77, expected a block id below",
    ),
    "rows": ("subsequence_begins", 6, 999, r"KeySummary: subsequence_begins\[6\] is 999"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_refused_before_anything_is_written(name: str) -> None:
    case = OpsPass(SEQUENCES)
    field, index, value, message = BAD_INPUTS[name]
    case.inputs[field][index] = value
    tensors, summary = inputs_of(case)
    with pytest.raises(ValueError, match=message):
        evaluate("KeySummary", tensors, sizes(case))
    assert (summary == UNTOUCHED).all()


def test_summary_of_another_shape_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors, _ = inputs_of(case)
    tensors["key_summary"] = ov.Tensor(np.zeros((1, case.kv_heads, case.k_size), np.float32))
    with pytest.raises(ValueError, match=r"KeySummary: key_summary holds .* expected \[blocks of key_cache"):
        evaluate("KeySummary", tensors, sizes(case))
