from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.caches import FORMATS, write_block
from ops.compare import assert_close
from ops.passes import OpsPass, compile_op, evaluate, infer

from ovspec_ops import loader
from ovspec_ops.key_summary.reference import key_summary

UNTOUCHED = 7.0
# No sequence is excluded here: KeySummary follows every write of the stock node.
SEQUENCES = [(70, 5, True), (0, 40, True), (31, 1, True), (32, 1, True), (200, 3, True), (5, 64, True)]


def untouched(case: OpsPass, kind: str) -> NDArray[np.float32]:
    size = case.k_size * (2 if kind == "min_max" else 1)
    return np.full((len(case.inputs["key_cache"]), case.kv_heads, size), UNTOUCHED, np.float32)


def inputs_of(case: OpsPass, kind: str = "mean") -> tuple[dict[str, ov.Tensor], NDArray[np.float32]]:
    summary = untouched(case, kind)
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


def reference(case: OpsPass, kind: str = "mean") -> NDArray[np.float64]:
    names = ("verify_past_lens", "subsequence_begins", "verify_block_indices", "verify_block_indices_begins")
    tables = [case.inputs[name] for name in names]
    return key_summary(
        case.inputs["key_cache"], untouched(case, kind), *tables, k_size=case.k_size, summary=kind
    )


def sizes(case: OpsPass, kind: str = "mean") -> dict[str, Any]:
    return {"kv_heads": case.kv_heads, "k_size": case.k_size, "summary": kind}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("k_size", [8, 24, 40, 64, 72, 80, 96, 128, 256])
@pytest.mark.parametrize("kind", ["mean", "min_max"])
def test_summaries_of_the_written_blocks(isa: str, kind: str, fmt: str, k_size: int) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, k_size=k_size, v_size=8, fmt=fmt)
    tensors, summary = inputs_of(case, kind)
    token = evaluate("KeySummary", tensors, sizes(case, kind))[0]
    assert token.tolist() == [0]
    expected = reference(case, kind)
    assert_close("KeySummary", expected, summary, 1e-6)
    assert np.array_equal(summary == UNTOUCHED, expected == UNTOUCHED)


@pytest.mark.parametrize("kind", ["mean", "min_max"])
def test_a_key_that_is_no_number_makes_its_channel_none(isa: str, kind: str) -> None:
    case = OpsPass([(40, 5, True)], kv_heads=2, k_size=40)
    block = case.inputs["verify_block_indices"][1]
    case.inputs["key_cache"][block, 1, [0, 7, 12], [3, 33, 39]] = np.nan
    tensors, summary = inputs_of(case, kind)
    evaluate("KeySummary", tensors, sizes(case, kind))
    channels = [3, 33, 39] + ([43, 73, 79] if kind == "min_max" else [])
    assert np.argwhere(np.isnan(summary)).tolist() == [[block, 1, channel] for channel in channels]


@pytest.mark.parametrize("kind", ["mean", "min_max"])
@pytest.mark.parametrize("fmt", ["f32", "u8_token"])
def test_rolled_back_and_rewritten_blocks_are_summarised_anew(isa: str, kind: str, fmt: str) -> None:
    """The second pass ends earlier than the first: nothing of the first one's rows is left in the summary."""
    long = OpsPass([(40, 60, True)], kv_heads=2, k_size=24, fmt=fmt)
    tensors, summary = inputs_of(long, kind)
    evaluate("KeySummary", tensors, sizes(long, kind))
    first = summary.copy()
    rng = np.random.default_rng(5)
    table = long.inputs["verify_block_indices"]
    keys = rng.standard_normal((10, 2, 24)).astype(np.float32) * 9
    write_block(long.inputs["key_cache"], fmt, table[1], keys)
    long.inputs["subsequence_begins"][1] = 2  # 40 tokens before the pass, 2 rows: two blocks
    long.inputs["attention"] = long.inputs["attention"][:2]
    again, _ = inputs_of(long, kind)
    again["key_summary"] = ov.Tensor(summary, shared_memory=True)
    evaluate("KeySummary", again, sizes(long, kind))
    assert_close("KeySummary", reference(long, kind)[table[1]], summary[table[1]], 1e-6)
    untouched_blocks = [block for block in range(len(summary)) if block != table[1]]
    assert np.array_equal(summary[untouched_blocks], first[untouched_blocks])


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


def test_summary_of_another_type_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors, summary = inputs_of(case)
    tensors["key_summary"] = ov.Tensor(np.zeros(summary.shape, np.float16))
    parameters = [ov.op.Parameter(ov.Type.dynamic, t.shape) for t in tensors.values()]
    node = loader.create("KeySummary", parameters, sizes(case))
    with pytest.raises((ValueError, RuntimeError), match="element type f16, is not representable"):
        node.evaluate([ov.Tensor(ov.Type.i32, ov.Shape([1]))], list(tensors.values()))


def test_summary_of_another_kind_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors, _ = inputs_of(case)
    with pytest.raises(ValueError, match=r"KeySummary: attribute summary is 'median', expected one of mean"):
        evaluate("KeySummary", tensors, sizes(case, "median"))
    with pytest.raises(ValueError, match=r"KeySummary: key_summary holds .* a min_max summary"):
        evaluate("KeySummary", tensors, sizes(case, "min_max"))
